"""A table of cases. Each runs under SageMaker's toolkit, with both ways to start MPI, and on the simulated cluster."""

import json
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.job.settings import SECRET_VARIABLE

from tests.faults.breakage import kill_host
from tests.support import finish, processes_of, start, wait_for
from tests.toolkit.hosts import END_S, ToolkitJob, submit

HETERO = ("--is_hetero", "--num_of_data_instances=1")
HOMOGENEOUS = ("--no-is_hetero",)
ONE_HOST = ("--num_of_dnn_instances=1", "--processes_per_host=2")
TWO_HOSTS = ("--num_of_dnn_instances=2", "--processes_per_host=1")
LONG = ("--epochs=60",)
RANK = re.compile(r"^\S+ (-u )?-m headrace\.rank ")
SIMULATED, LAUNCHER, MPI = "simulated", "launcher", "mpi"
WAYS = (SIMULATED, LAUNCHER, MPI)
LATE_S = 60.0


@dataclass(frozen=True)
class Case:
    """A job, the rank or host to kill once the job makes steps, and the root cause that all hosts must report."""

    flags: tuple[str, ...]
    dies: tuple[str, str] | None = None
    """Name of a host, and what is killed: a `rank` on it, or the whole `host`."""
    cause: tuple[str, str] | None = None
    """Host and role of the root cause."""
    late: str = ""
    """Name of a host that starts `LATE_S` seconds after the others. (The simulated cluster starts all at once.)"""
    script: str = "steady.py"
    toys: bool = True
    """Whether the job uses the trainer and data service of tests/faults/toys, which start in a moment."""
    ways: tuple[str, ...] = WAYS
    """The ways to run the case. If `SIMULATED` is one of the ways, the result must not depend on the way."""


GIVEN = {
    "spaces": "a b  c ",
    "quotes": 'it\'s "quoted" `twice`',
    "dollars": "$HOME $(id) ${PATH} %s ; exit 1 | cat & #",
    "unicode": "größe 水車 🚰",
    "json": '{"a": [1, null, true], "b": "c d"}',
    "empty": "",
    "newline": "a\nb\\n",
    "true": "true",
    "number": "1e-3",
    "flag": "--processes_per_host",
    "k": "v",
}
"""Hyperparameters that are easy to misread on their way to the script."""

CASES = {
    # The toys' trainer would not wait for the data host.
    "a data host a minute late": Case((*HETERO, *ONE_HOST), late="algo-1", toys=False, ways=(LAUNCHER, MPI)),
    "homogeneous with the data service, two hosts": Case(
        (*HOMOGENEOUS, "--tf_data_mode=service", *TWO_HOSTS), ways=(SIMULATED, MPI)
    ),
    # A preflight needs TensorFlow on all hosts. That takes a minute of CPU time for each way to run the case.
    "homogeneous with the data service, two hosts, with a preflight": Case(
        (*HOMOGENEOUS, "--tf_data_mode=service", *TWO_HOSTS, "--preflight"), toys=False, ways=(SIMULATED, LAUNCHER)
    ),
    "a rank killed on the second dnn host": Case(
        (*HETERO, *TWO_HOSTS, *LONG), dies=("algo-3", "rank"), cause=("algo-3", "rank1")
    ),
    "a rank that raises, beside the one that the launcher started": Case(
        # The toolkit's mpirun kills the launcher before the rank that it started has ended.
        (*HETERO, *ONE_HOST, "--hyperparameter=how=raise", "--hyperparameter=deaf=1"),
        cause=("algo-2", "rank1"),
        script="failing.py",
    ),
    "hyperparameters": Case(
        (
            *HETERO,
            *TWO_HOSTS,
            "--custom_mpi_options=-x HEADRACE_TEST=given",
            *(f"--hyperparameter={name}={value}" for name, value in GIVEN.items()),
        ),
        script="arguments.py",
    ),
    "the leader gone": Case((*HETERO, *TWO_HOSTS, *LONG), dies=("algo-2", "host"), cause=("algo-2", "launcher")),
}


@dataclass(frozen=True)
class Played:
    """The result of a case that was run in one way. Tests compare the results of several ways."""

    exit_codes: dict[str, int]
    """Exit codes of the hosts that ended by themselves."""
    causes: dict[str, dict]
    """Root cause that each host reported."""
    summary: dict | None
    folder: Path
    """Folder that holds each host's /opt/ml, under the host's name."""
    logs: str


def play(case: Case, way: str, source: Path, folder: Path) -> Played:
    """Run a case to its end in one of `WAYS`, and return its result."""
    flags = (f"--source_dir={source}", f"--training_script={case.script}", *(() if case.dies else ("--epochs=2",)))
    if way == SIMULATED:
        return _play_simulated(case, flags, folder)
    request = submit(f"toolkit-{secrets.token_hex(4)}", *flags, *case.flags, f"--distribution={way}")
    request["Environment"][SECRET_VARIABLE] = secrets.token_hex(32)
    # The toolkit cannot start MPI on hosts whose lists of hosts differ in order.
    with ToolkitJob(request, source, folder, shuffle_hosts=way == LAUNCHER, has_tensorflow=not case.toys) as job:
        job.start(*(host for host in job.hosts if host != case.late))
        if case.late:
            time.sleep(LATE_S)
            job.start(case.late)
        gone = []
        if case.dies:
            job.wait_for_steps()
            host, what = case.dies
            gone = _strike(job, host, what, way)
        exit_codes = job.wait(without=gone)
        logs = job.tails()
    return Played(exit_codes, _causes(folder, without=gone), _summary(folder), folder, logs)


def _strike(job: ToolkitJob, host: str, what: str, way: str) -> list[str]:
    """Kill the rank or host. Return the hosts whose end the caller must not wait for.

    A killed host is returned. If the toolkit started MPI, all dnn hosts except the leader are returned too. After a
    failed mpirun, these hosts wait minutes for a file that never comes, and then report success (sagemaker-training
    5.1, `WorkerRunner.run`).
    """
    if what == "host":
        job.kill(host)
        gone = [host]
    else:
        job.process(host, RANK).kill()
        gone = []
    joined = [each for each in job.hosts if each not in ("algo-1", "algo-2")] if way == MPI else []
    if joined and what == "rank":
        causes = [job.base_dir(each) / "output/data/root_cause.json" for each in joined]
        wait_for(lambda: all(path.exists() for path in causes), "a root cause on all dnn hosts")
    return [*gone, *joined]


def _play_simulated(case: Case, flags: tuple[str, ...], folder: Path) -> Played:
    folder.mkdir(parents=True)
    process, results = start(folder, *flags, *case.flags, "--isolation=namespaces")
    gone = []
    if case.dies:
        logs = lambda: "".join(path.read_text() for path in results.glob("*.log"))  # noqa: E731
        is_whole = lambda: all(f"headrace event={each} " in logs() for each in ("step", "workers_ready"))  # noqa: E731
        wait_for(lambda: is_whole() or process.poll() is not None, "a step with all hosts", END_S)
        gone = _strike_simulated(process, results, *case.dies)
    run = finish(process, results)
    exit_codes = {host: record["exit_code"] for host, record in run.summary["hosts"].items() if host not in gone}
    return Played(
        exit_codes, _causes(results, without=gone), None if gone else run.summary, results, run.output[-6000:]
    )


def _strike_simulated(process, results: Path, host: str, what: str) -> list[str]:
    if what == "host":
        kill_host(_Job(results), host)
        return [host]
    (rank,) = [
        each
        for each in processes_of(results.name)
        if RANK.search(" ".join(each.cmdline())) and each.environ()["SM_CURRENT_HOST"] == host
    ]
    rank.kill()
    return []


@dataclass(frozen=True)
class _Job:
    folder: Path


def _causes(folder: Path, without: list[str]) -> dict[str, dict]:
    found = {}
    for path in sorted(folder.glob("algo-*/output/data/root_cause.json")):
        if (host := path.relative_to(folder).parts[0]) not in without:
            found[host] = json.loads(path.read_text())
    return found


def _summary(folder: Path) -> dict | None:
    found = list(folder.glob("algo-*/output/data/summary.json"))
    assert len(found) <= 1, f"two hosts led: {found}"
    return json.loads(found[0].read_text()) if found else None
