"""Measure CPU use of leader and dispatcher, and the time of start and teardown, with 1 to 32 simulated data hosts.

    python -m bench.hosts [--repeats 5]

Every data host is a namespace with a launcher and a worker. All hosts share this machine's processors. The pipeline is
light. CPU use is the fraction of one processor that a process uses over eight seconds of training. It is measured for
two processes: the leader's launcher, which calls every host, and the dispatcher.
"""

import time

from bench import jobs, measure
from tests.support import finish, process_of, start, wait_for

HOSTS = (1, 2, 4, 8, 16, 32)
WATCHED_S, TRAINING_S = 8.0, 12.0
LEADER, DISPATCHER = r"launcher\.py", r"train_data\.py dispatcher"


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    runs = {}
    with jobs.source_dir() as source:
        for repeat in range(repeats):
            for hosts in HOSTS:
                runs.setdefault(hosts, []).append(one(source, hosts))
            print(f"hosts: {repeat + 1} of {repeats}", flush=True)
    rows = [
        {"data hosts": str(hosts)} | {key: measure.median([run[key] for run in each]) for key in each[0]}
        for hosts, each in runs.items()
    ]
    figures = {
        "control_core_share_32_hosts": rows[-1]["leader's launcher"],
        "dispatcher_core_share_32_hosts": rows[-1]["dispatcher"],
        "teardown_s_32_hosts": rows[-1]["teardown s"],
    }
    measure.leave("hosts", figures, rows, repeats=repeats)


def one(source, hosts):
    flags = [f"--source_dir={source}", "--training_script=fixed_step.py", "--isolation=namespaces"]
    flags += [f"--num_of_data_instances={hosts}", "--processes_per_host=1", "--batch_size=64"]
    flags += ["--hyperparameter=form=light", "--hyperparameter=wait_ms=20", f"--hyperparameter=seconds={TRAINING_S}"]
    process, folder = start(source.parent, *flags)
    leader = folder / f"algo-{hosts + 1}.log"
    wait_for(lambda: leader.exists() and "event=first_step" in leader.read_text(), "the first step", 180)
    time.sleep(1)
    watched = {
        "leader's launcher": process_of(folder.name, f"algo-{hosts + 1}", LEADER),
        "dispatcher": process_of(folder.name, "algo-1", DISPATCHER),
    }
    before = {name: cpu_s(each) for name, each in watched.items()}
    began = time.perf_counter()
    time.sleep(WATCHED_S)
    seconds = time.perf_counter() - began
    shares = {name: (cpu_s(each) - before[name]) / seconds for name, each in watched.items()}
    run = finish(process, folder)
    if run.code:
        raise SystemExit(f"bench: error: a job of {hosts} data hosts failed:\n{run.output[-3000:]}")
    (rate,) = run.events("measured")
    summary = run.summary
    return {
        "all ready s": summary["startup_s"]["workers_ready"],
        "first step s": summary["startup_s"]["first_step"],
        **shares,
        "images/s": float(rate.fields["images_per_s"]),
        "teardown s": summary["teardown_s"],
    }


def cpu_s(process):
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
