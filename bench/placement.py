"""Whether a worker beside the trainer helps, and never hurts, whatever else its processor does.

    python -m bench.placement [--repeats 3]

The trainer has one processor and a data host the other. Beside the trainer something takes none, half or all of its
processor. "sum": what the data host's worker makes alone, and what a worker makes alone on a processor of which the
same part is taken, both with a reader that has a processor of its own.
"""

import contextlib
import os
import subprocess
import sys

from bench import jobs, measure

SPIN = jobs.SCRIPTS / "spin.py"
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
    rows, sums, best = [], [], []
    with jobs.source_dir() as source:

        def rate(local_workers, busy=0.0, taken=0.0, times=3):
            with taken_away(second, taken):
                flags = [*helped, "--processes_per_host=1", f"--local_workers={local_workers}", f"--batch_size={BATCH}"]
                run = jobs.run(source, "planned_step.py", *flags, times=times, busy=busy, wait_ms=5)
            return BATCH * 1000 / jobs.measured(run)["step_ms"]

        for name, (times, busy) in SITUATIONS.items():
            on, off, alone, beside = [], [], [], []
            for _ in range(repeats):
                on.append(rate("on", busy, times=times))
                off.append(rate("off", busy, times=times))
                if times:
                    alone.append(rate("off", times=times))
                    beside.append(rate("off", taken=busy, times=times) if busy < 1 else 0.0)
            row = {"situation": name, "on": measure.median(on), "off": measure.median(off)}
            row["on ÷ best"] = row["on"] / max(row["on"], row["off"])
            row["on ÷ sum"] = row["on"] / (measure.median(alone) + measure.median(beside)) if times else "-"
            rows.append(row)
            best.append(row["on ÷ best"])
            if times and busy == 0.5:
                sums.append(row["on ÷ sum"])
            print("placement:", *row.values(), flush=True)
    figures = {"placement_vs_sum": min(sums), "placement_on_vs_best": min(best)}
    measure.leave("placement", figures, rows, repeats=repeats)


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
