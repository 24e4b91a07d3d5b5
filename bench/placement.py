"""Whether a worker beside the trainer helps, and never hurts, whatever else its processor does.

    python -m bench.placement [--repeats 3]

The trainer has one processor and a data host the other. Beside the trainer something takes none, half or all of its
processor. "sum": what the data host's worker makes alone, and what a worker makes alone on a processor of which the
same part is taken (by what runs beside the trainer, and by the arithmetic of its steps), both with a reader that has a
processor of its own. "processors": what two processors make at once of what each makes alone, of the same pipeline
without any reader; they share caches and memory.
"""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from bench import jobs, measure
from tests.support import ROOT

SPIN, AUGMENTED = jobs.SCRIPTS / "spin.py", jobs.SCRIPTS / "augmented.py"
SITUATIONS = {
    "processor free": (3, 0.0),
    "half of it taken": (3, 0.5),
    "all of it taken": (3, 1.0),
    "light pipeline, half taken": (0, 0.5),
}
"""How often the augmentation is repeated, and the part of the trainer's processor that is taken."""
BATCH = 512


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=3).repeats
    first, second = measure.two_processors()
    helped = ["--num_of_data_instances=1", f"--cpus=dnn_group={first};data_group={second}"]
    rows, sums, of_processors, best, arithmetic = [], [], [], [], []
    with jobs.source_dir() as source:

        def rate(local_workers, busy=0.0, taken=0.0, times=3):
            with taken_away(second, taken):
                flags = [*helped, "--processes_per_host=1", f"--local_workers={local_workers}", f"--batch_size={BATCH}"]
                run = jobs.run(source, "planned_step.py", *flags, times=times, busy=busy, wait_ms=5)
            steps_per_s = 1000 / jobs.measured(run)["step_ms"]
            arithmetic.append(run.summary["compute_cpu_s_per_step"] * steps_per_s)
            return BATCH * steps_per_s

        for name, (times, busy) in SITUATIONS.items():
            on, off, alone, beside, both = [], [], [], [], []
            for _ in range(repeats):
                on.append(rate("on", busy, times=times))
                taken = busy + arithmetic[-1]
                off.append(rate("off", busy, times=times))
                if times:
                    alone.append(rate("off", times=times))
                    beside.append(rate("off", taken=taken, times=times) if busy < 1 else 0.0)
                    both.append(processors(times, first, second))
            row = {"situation": name, "on": measure.median(on), "off": measure.median(off)}
            row["on ÷ best"] = row["on"] / max(row["on"], row["off"])
            row["on ÷ sum"] = row["on"] / (measure.median(alone) + measure.median(beside)) if times else "-"
            row["processors"] = measure.median(both) if both else "-"
            rows.append(row)
            best.append(row["on ÷ best"])
            if times and busy == 0.5:
                sums.append(row["on ÷ sum"])
                of_processors.append(row["on ÷ sum"] / row["processors"])
            print("placement:", *row.values(), flush=True)
    figures = {"placement_vs_sum": min(sums), "placement_vs_sum_of_processors": min(of_processors),
               "placement_on_vs_best": min(best)}  # fmt: skip
    measure.leave("placement", figures, rows, repeats=repeats)


def processors(times, *cpus):
    """What they make at once, of what each makes alone."""
    return sum(going_nowhere(times, *cpus)) / sum(sum(going_nowhere(times, each)) for each in cpus)


def going_nowhere(times, *cpus):
    """Images a second of a process on each of these at the same time."""

    def one(cpu):
        command = ["taskset", "--cpu-list", str(cpu), sys.executable, str(AUGMENTED), str(times), str(BATCH), "6"]
        environ = os.environ | {"PYTHONPATH": str(ROOT / "code")}
        made = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
        return float(made.stdout)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, cpus))


@contextlib.contextmanager
def taken_away(cpu, share):
    """Something else takes this part of a processor."""
    if not share:
        yield
        return
    with measure.pinned(cpu):
        spinning = subprocess.Popen([sys.executable, str(SPIN), str(share), str(os.getpid())])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


if __name__ == "__main__":
    main()
