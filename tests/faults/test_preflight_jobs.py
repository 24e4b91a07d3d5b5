"""A preflight on hosts with a network measures all links. It names a slow link, and a rank that does not answer."""

import json
import os
import signal
import sys

import pytest

from tests.faults.breakage import RANK, TOYS, slow_down
from tests.support import copy_source, finish, process_of, start, wait_for

HOSTS = ["--no-is_hetero", "--num_of_dnn_instances=2", "--processes_per_host=2", "--isolation=namespaces"]
WAITING_LAUNCHER = """
import pathlib, time
from headrace.host.main import entry_point
if __name__ == "__main__":
    pathlib.Path(__file__).with_name("here").touch()
    while not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.05)
    entry_point(__file__)
"""


@pytest.fixture
def waiting(tmp_path):
    """Function that starts a job whose hosts wait for the file `go`, so that a test can disturb them first."""
    source = copy_source(tmp_path / "source")
    (source / "launcher.py").write_text(WAITING_LAUNCHER)
    running = []

    def begin(*flags):
        process, folder = start(tmp_path, *HOSTS, f"--source_dir={source}", "--preflight=only", *flags)
        running.append(process)
        for host in ("algo-1", "algo-2"):
            wait_for((folder / host / "code" / "here").exists, f"{host}'s start")
        return process, folder

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
            process.communicate()


def go(folder):
    for host in ("algo-1", "algo-2"):
        (folder / host / "code" / "go").touch()


def test_two_hosts_with_two_ranks_each_are_told_apart(waiting):
    process, folder = waiting()
    go(folder)
    run = finish(process, folder)
    assert run.code == 0, run.output[-3000:]
    report = json.loads((folder / "preflight.json").read_text())
    assert [(rank["host"], rank["local_rank"]) for rank in report["ranks"]] == [
        ("algo-1", 0),
        ("algo-1", 1),
        ("algo-2", 0),
        ("algo-2", 1),
    ]
    assert [(link["ranks"], link["from"], link["to"]) for link in report["links"]] == [
        ("0-2", "algo-1", "algo-2"),
        ("0-1", "algo-1", "algo-1"),
        ("2-3", "algo-2", "algo-2"),
    ]
    assert len(run.events("preflight_passed")) == 1
    assert run.summary["steps"] == 0, "it trained"


def test_a_slow_link_is_named(waiting):
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("this machine has no TAP devices")
    process, folder = waiting()
    link = slow_down(Job(process), "algo-2", delay_s=0.02, loss=0.0)
    try:
        go(folder)
        run = finish(process, folder)
    finally:
        link.kill()
        link.communicate()
    assert run.code == 0, run.output[-3000:]
    (slow,) = run.events("preflight_slow_link")
    assert (slow.fields["from"], slow.fields["to"]) == ("algo-1", "algo-2")
    assert 15 < float(slow.fields["latency_ms"]) < 200


def test_a_rank_that_is_stopped_as_it_starts_is_named_at_the_deadline(waiting):
    process, folder = waiting("--hyperparameter=preflight_timeout_s=45")
    go(folder)
    stopped = wait_for(lambda: _rank(folder, "algo-2"), "a rank on algo-2")
    number = stopped.environ()["OMPI_COMM_WORLD_RANK"]
    stopped.send_signal(signal.SIGSTOP)
    run = finish(process, folder)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert (cause["host"], cause["role"]) == ("algo-2", f"rank{number}"), cause
    assert "preflight: " in cause["message"] and "within 45 s (preflight_timeout_s)" in cause["message"]


def test_a_job_that_passes_trains_though_its_environment_is_reached_by_a_link_with_spaces(tmp_path):
    linked = tmp_path / "a link"  # ranks hang if hosts have different paths of Open MPI's folder, so links are resolved
    linked.symlink_to(sys.prefix)
    source = copy_source(tmp_path / "source", TOYS / "steady.py")
    script = ["--training_script=steady.py", "--epochs=1", f"--source_dir={source}"]
    run = finish(*start(tmp_path, *HOSTS, "--preflight", *script, python=linked / "bin" / "python"))
    assert run.code == 0, run.output[-3000:]
    assert run.events("preflight_passed") and run.events("step")


class Job:
    """The part of a job that `slow_down` uses."""

    def __init__(self, process):
        self.process = process


def _rank(folder, host):
    try:
        return process_of(folder.name, host, RANK)
    except AssertionError:
        return None
