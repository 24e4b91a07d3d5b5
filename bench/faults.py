"""Cause random faults in real jobs: does a job hang, does it leave processes, and how long does it take to recover?

    python -m bench.faults [--runs 100] [--seed 0] [--framework pytorch]     (pytorch: with .venv-torch's Python)

Each run is a job of two data hosts and a dnn host with two ranks. At a random moment one process or host is killed,
suspended or cut off. Writes bench/out/faults.json (torch_faults.json) and prints a table of seconds. If the fault ends
the job, the seconds count from the fault until all hosts have ended. Else they count from the fault until the twentieth
step after the fault. Without a fault, 20 steps take about 1 s with TensorFlow, half a second with PyTorch.
"""

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import breakage
from tests.support import ROOT, finish, processes_of, start

HUNG_AFTER_S = 150
STALL_TIMEOUT_S, STARTUP_TIMEOUT_S = 25, 40
RECOVERED_STEP_EVENTS = 4
"""Number of step events after which training has recovered. Each event covers 5 steps, so these are 20 steps."""
OUT = Path(__file__).parent / "out"
OUT_FILES = {"tensorflow": "faults.json", "pytorch": "torch_faults.json"}
# For each moment: the log's text that marks it, and the maximum number of seconds from that text to the fault.
MOMENTS = {
    "start-up": ("event=topology", 6.0),
    "before the first step": ("event=training_started", 5.0),
    "mid-epoch": ("headrace event=step ", 4.0),
    "checkpoint": ("event=checkpoint ", 0.05),
    "teardown": ("event=training_finished", 0.2),
}
SIGSTOP, SIGKILL = signal.SIGSTOP, signal.SIGKILL


class Job:
    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def cut(host, seconds=None):
    def strike(job):
        breakage.set_link(job, host, "down")
        if seconds:
            time.sleep(seconds)
            breakage.set_link(job, host, "up")

    return strike


def kill(host, words, signum=SIGKILL):
    return lambda job: breakage.kill(job, host, words, signum)


def kill_host(host):
    return lambda job: breakage.kill_host(job, host)


FAULTS = {
    "dispatcher killed": kill("algo-1", breakage.DISPATCHER),
    "data host's worker killed": kill("algo-2", breakage.WORKER),
    "dnn host's worker killed": kill("algo-3", breakage.WORKER),
    "data host's feed server killed": kill("algo-2", breakage.FEED),
    "dnn host's feed server killed": kill("algo-3", breakage.FEED),
    "feed server suspended": kill("algo-1", breakage.FEED, SIGSTOP),
    "data host killed": kill_host("algo-2"),
    "network cut for 4 s": cut("algo-2", 4),
    "dispatcher's host killed": kill_host("algo-1"),
    "rank killed": kill("algo-3", breakage.RANK),
    "mpirun killed": kill("algo-3", breakage.MPIRUN),
    "leader's launcher killed": kill("algo-3", breakage.LAUNCHER),
    "leader's host killed": kill_host("algo-3"),
    "rank suspended": kill("algo-3", breakage.RANK, SIGSTOP),
    "dispatcher suspended": kill("algo-1", breakage.DISPATCHER, SIGSTOP),
    "dispatcher's host cut off": cut("algo-1"),
    "stop request": kill("algo-3", breakage.LAUNCHER, signal.SIGTERM),
}
SURVIVED = ("dispatcher killed", "data host's worker killed", "dnn host's worker killed", "data host killed",
            "data host's feed server killed", "dnn host's feed server killed", "feed server suspended",
            "network cut for 4 s")  # fmt: skip
STEADY = {"tensorflow": breakage.STEADY, "pytorch": ROOT / "tests" / "torch" / "scripts" / "steady_torch.py"}


def faults_of(framework):
    """Return the faults that apply to a job of this framework: PyTorch has no dispatcher, TensorFlow no feed server."""
    others = ("feed server",) if framework == "tensorflow" else ("dispatcher", "worker")
    return [name for name in FAULTS if not any(word in name for word in others)]


def one_run(folder, source, framework, fault, moment, delay_s):
    """Run one job with a fault; return its outcome, its times, whether it hung, and which processes it left."""
    word, _ = MOMENTS[moment]
    flags = [f"--framework={framework}", f"--source_dir={source}", f"--training_script={STEADY[framework].name}"]
    flags += ["--isolation=namespaces", "--epochs=5"]
    flags += [f"--hyperparameter=stall_timeout_s={STALL_TIMEOUT_S}"]
    flags += [f"--hyperparameter=startup_timeout_s={STARTUP_TIMEOUT_S}"]
    job = Job(*start(folder, *flags))
    record = {"fault": fault, "moment": moment, "delay_s": round(delay_s, 2), "hung": False, "leftover": 0}
    deadline = time.monotonic() + 60
    while word not in job.text() and job.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay_s)
    try:
        FAULTS[fault](job)
        record["struck"] = True
    except Exception as error:  # the target does not exist at this moment
        record["struck"], record["missed"] = False, f"{type(error).__name__}: {error}"[:100]
    struck = time.monotonic()
    steps = job.text().count("headrace event=step ")
    while fault in SURVIVED and job.process.poll() is None and "recovered_s" not in record:
        if job.text().count("headrace event=step ") >= steps + RECOVERED_STEP_EVENTS:
            record["recovered_s"] = round(time.monotonic() - struck, 2)
        elif time.monotonic() - struck > HUNG_AFTER_S:
            break
        time.sleep(0.05)
    try:
        run = finish(job.process, job.folder, HUNG_AFTER_S)
        record |= {"end_s": round(time.monotonic() - struck, 2), "code": run.code}
        cause = run.summary.get("root_cause")
        record["root_cause"] = cause and f"{cause['role']} on {cause['host']}: {cause['message']}"[:160]
        ends = [host["exit_code"] for host in run.summary["hosts"].values() if not host.get("lost")]
        record["agree"] = len({code == 0 for code in ends}) == 1
    except AssertionError as error:
        record["hung"] = "hung" in str(error)
        record["leftover"] = len(processes_of(job.folder.name))
        record["error"] = str(error)[-2000:]
        for process in processes_of(job.folder.name):
            process.kill()
    return record


def table(records):
    lines = [f"{'fault':<32}{'runs':>5}{'struck':>8}{'job failed':>12}{'median s':>10}{'max s':>8}"]
    for fault in dict.fromkeys(record["fault"] for record in records):
        own = [record for record in records if record["fault"] == fault]
        struck = [record for record in own if record["struck"]]
        key = "recovered_s" if fault in SURVIVED else "end_s"
        times = [record[key] for record in struck if key in record] or [float("nan")]
        failed = sum(record.get("code") == 1 for record in struck)
        row = f"{fault:<32}{len(own):>5}{len(struck):>8}{failed:>12}{statistics.median(times):>10.1f}{max(times):>8.1f}"
        lines.append(row)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_minutes", type=float, default=60.0, help="minutes after which no new run starts")
    parser.add_argument("--framework", choices=list(STEADY), default="tensorflow")
    arguments = parser.parse_args()
    faults = faults_of(arguments.framework)
    chance = random.Random(arguments.seed)
    OUT.mkdir(exist_ok=True)
    records, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-faults-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "code", folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(STEADY[arguments.framework], folder / "source")
        while len(records) < arguments.runs and time.monotonic() - began < arguments.max_minutes * 60:
            fault, moment = faults[len(records) % len(faults)], chance.choice(list(MOMENTS))
            delay_s = chance.uniform(0, MOMENTS[moment][1])
            record = one_run(folder, folder / "source", arguments.framework, fault, moment, delay_s)
            records.append(record)
            print(f"{len(records)}/{arguments.runs} {json.dumps(record)}", flush=True)
            figures = {
                "faults_run": sum(record["struck"] for record in records),
                "faults_hung": sum(record["hung"] for record in records),
                "faults_leftover": sum(record["leftover"] for record in records),
            }
            (OUT / OUT_FILES[arguments.framework]).write_text(
                json.dumps({"figures": figures, "runs": records}, indent=1) + "\n"
            )
            for run in folder.glob("job-*"):
                shutil.rmtree(run, ignore_errors=True)
    print(table(records))
    print(figures)
    # Faults at teardown are not judged: a host that dies after the outcome is decided cannot change it.
    judged = [record for record in records if record["struck"] and record["moment"] != "teardown"]
    broken = [r for r in judged if not r.get("agree", True) or (r["fault"] in SURVIVED and r.get("code") != 0)]
    for record in broken:
        print(f"broken promise: hosts' outcomes differ, or the job did not survive: {json.dumps(record)}")
    return int(figures["faults_hung"] + figures["faults_leftover"] + len(broken) > 0)


if __name__ == "__main__":
    sys.exit(main())
