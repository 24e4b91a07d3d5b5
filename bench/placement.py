"""Test whether a worker beside the trainer helps, and never hurts, however busy the trainer's processor is.

    python -m bench.placement [--repeats 8]

The trainer has one processor, and a data host has the other. There are five situations. In four of them, another
program may take half or all of the trainer's processor. In the fifth the trainer itself needs three quarters of its
processor, in many short turns, as if it launched an accelerator's kernels. There the data host needs no help to feed
the trainer. Each situation has one job. The rates below are measured in turns of a few seconds, so that changes of the
machine's speed affect all rates alike:

"on", "off": images a second while the worker beside the trainer runs, and while this worker is suspended.
"sum": the sum of two rates. For the first rate, only the data host's worker runs. For the second rate, only the worker
on the trainer's host runs, and the trainer moves to the data host's processor. On the trainer's own processor, another
program then takes the share that it and the trainer together take in "on".
"processors": the pipeline's rate on both processors at once ÷ the sum of its rates on each processor alone. Nothing
reads these batches. Processors share caches and memory, so the ratio may be less than 1.
"""

import bisect
import contextlib
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import jobs, measure
from tests.faults.breakage import RANK, WORKER
from tests.support import ROOT, process_of, processes_of, wait_for

AUGMENTED = jobs.SCRIPTS / "augmented.py"
SITUATIONS = {
    "processor free": (3, 0.0, 1, 0, 5),
    "half of it taken": (3, 0.5, 1, 0, 5),
    "all of it taken": (3, 1.0, 1, 0, 5),
    "light pipeline, half taken": (0, 0.5, 1, 0, 5),
    "accelerator, scarce processor": (1, 0.0, 40, 1.5, 0.5),
}
"""Five values for each situation: repetitions of the augmentation; share of the trainer's processor that another
program takes; launches in a step; CPU time of a launch in ms; waiting time of a launch in ms."""
BATCH = 512
ALL_TURNS = ("on", "off", "alone", "beside", "first", "second", "both")
SETTLE_S, TURN_S = 1.0, 4.0
FIRST_STEPS_S = 120.0


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=8).repeats
    rows, sums, of_processors, best = [], [], [], []
    with jobs.source_dir() as source:
        for name, (times, busy, *step) in SITUATIONS.items():
            summed = times and busy == 0.5
            rounds = _rounds(source, times, busy, step, ALL_TURNS if summed else ALL_TURNS[:2], repeats)
            row = {"situation": name}
            row |= {turn: measure.median([each[turn] for each in rounds]) for turn in ("on", "off")}
            row["on ÷ best"] = min(measure.median([each["on"] / each["off"] for each in rounds]), 1.0)
            row["on ÷ sum"] = row["processors"] = "-"
            if summed:
                row["on ÷ sum"] = measure.median([each["on"] / (each["alone"] + each["beside"]) for each in rounds])
                row["processors"] = measure.median([each["both"] / (each["first"] + each["second"]) for each in rounds])
                sums.append(row["on ÷ sum"])
                of_processors.append(row["on ÷ sum"] / row["processors"])
            best.append(row["on ÷ best"])
            rows.append(row)
            print("placement:", *row.values(), flush=True)
    figures = {
        "placement_vs_sum": min(sums),
        "placement_vs_sum_of_processors": min(of_processors),
        "placement_on_vs_best": min(best),
    }
    measure.leave("placement", figures, rows, repeats=repeats)


def _rounds(source, times, busy, step, turns, repeats):
    """Return one dictionary for each round, which maps each turn's name (of `ALL_TURNS`) to images per second."""
    first, second = measure.two_processors()
    found = []
    with _job(source, times, *step) as job, _going_nowhere(times, *(first, second) if "both" in turns else ()) as bare:
        (beside, remote), alone = job.workers, list(bare)
        for _ in range(repeats):
            rates = {}
            for turn in turns:
                going = {"on": job.workers, "off": [remote], "alone": [remote], "beside": [beside],
                         "first": alone[:1], "second": alone[1:], "both": alone}[turn]  # fmt: skip
                # "beside" moves the trainer to the data host's processor. On the trainer's own processor, spin.py then
                # takes what the steps' casts take in "on", in addition to its usual share.
                taken = {"on": busy, "off": busy, "beside": busy + job.arithmetic_s * rates.get("on", 0.0) / BATCH}
                job.taken.write_text(str(taken.get(turn, 0.0)))
                _move(job.trainer, second if turn == "beside" else first)
                for process in (*job.workers, *bare):
                    (process.resume if process in going else process.suspend)()
                time.sleep(SETTLE_S)
                began = time.monotonic()
                time.sleep(TURN_S)
                told = [bare[each] for each in going if each in bare] or [job.steps]
                rates[turn] = BATCH * sum(_rate(each, began, time.monotonic()) for each in told)
            print("placement:", *(f"{turn} {rate:,.0f}" for turn, rate in rates.items()), flush=True)
            found.append(rates)
        return found


@dataclass
class _Job:
    workers: tuple[psutil.Process, psutil.Process]
    """The worker on the trainer's host, and the data host's worker."""
    trainer: psutil.Process
    steps: Path
    taken: Path
    arithmetic_s: float


@contextlib.contextmanager
def _job(source, times, launches, compute_ms, wait_ms):
    """Run a job with a data host. The job trains until the context ends."""
    first, second = measure.two_processors()
    flags = ["--num_of_data_instances=1", f"--cpus=dnn_group={first};data_group={second}", "--processes_per_host=1"]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, ThreadPoolExecutor() as pool:
        folder, job_name = Path(name), f"placement-{os.getpid()}-{time.monotonic_ns()}"
        taken, steps = folder / "taken", folder / "steps"
        taken.write_text("0")
        step = {"launches": launches, "compute_ms": compute_ms, "wait_ms": wait_ms}
        given = {"folder": folder, "times": times, "batch_size": BATCH, **step}
        run = pool.submit(jobs.run, source, "turn_step.py", *flags, job_name=job_name, timeout_s=3600, **given)
        try:
            wait_for(
                lambda: (run.done() and run.result()) or (steps.exists() and steps.read_text()), "a step", FIRST_STEPS_S
            )
            workers = (process_of(job_name, "algo-2", WORKER), process_of(job_name, "algo-1", WORKER))
            trainer = process_of(job_name, "algo-2", RANK)
            yield _Job(workers, trainer, steps, taken, float((folder / "arithmetic").read_text()))
        finally:
            for process in processes_of(job_name):
                process.resume()
            taken.unlink()


@contextlib.contextmanager
def _going_nowhere(times, *cpus):
    """Start one process per processor, to make batches. Yield a dict: process as key, its output file as value."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        try:
            for cpu in cpus:
                steps = Path(name) / str(cpu)
                command = [sys.executable, str(AUGMENTED), str(times), str(BATCH), str(steps)]
                with measure.pinned(cpu):
                    environ = os.environ | {"PYTHONPATH": str(ROOT / "code")}
                    found[psutil.Popen(command, env=environ)] = steps
            wait_for(lambda: all(each.exists() and each.read_text() for each in found.values()), "a first batch")
            yield found
        finally:
            for process in found:
                process.kill()
                process.wait()


def _move(process, cpu):
    for thread in process.threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, {cpu})


def _rate(file, since, until):
    """Return the lines per second that a process wrote between `since` and `until`. Each line of the file is a time."""
    times = [float(line) for line in file.read_text().split("\n")[:-1]]
    of_turn = times[bisect.bisect(times, since) : bisect.bisect(times, until)]
    return (len(of_turn) - 1) / (of_turn[-1] - of_turn[0])


if __name__ == "__main__":
    main()
