"""After a fault that ends the job, or after a request to stop, every host ends with the right outcome."""

import signal
import time

import pytest

from tests.faults.breakage import (
    DISPATCHER,
    LAUNCHER,
    MPIRUN,
    RANK,
    WORKER,
    cut_off,
    in_namespace_of,
    kill,
    kill_host,
)
from tests.support import finish, process_of, wait_for

LONG = "--epochs=60"


def assert_failed_everywhere(run, *, without=()):
    """Check that every host ended by itself and knew that the job failed. `without` names hosts that were killed."""
    assert run.code == 1
    assert "still running after other hosts have ended" not in run.output
    for host, record in run.summary["hosts"].items():
        assert record["exit_code"] != 0, host
        if host not in without:
            assert "event=outcome status=failed" in run.log(host), host


# Faults that end the job


@pytest.mark.parametrize("words", [LAUNCHER, MPIRUN])
def test_a_dead_leader_ends_every_host(toy_victim, words):
    job = toy_victim(LONG)
    kill(job, "algo-3", words)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run, without=["algo-3"])
    assert run.summary["root_cause"]["host"] == "algo-3"
    assert "SIGKILL" in run.summary["root_cause"]["message"] or "not contacted" in run.summary["root_cause"]["message"]


def test_a_restarted_worker_that_lost_the_transfer_is_the_root_cause(victim):
    job = victim(LONG, "--hyperparameter=max_restarts=2", lost_transfer=False)
    (job.folder / "algo-2" / "code" / "lost").touch()
    kill(job, "algo-2", WORKER)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    cause = run.summary["root_cause"]
    assert (cause["host"], cause["role"]) == ("algo-2", "worker")
    assert "this host cannot send batches by headrace's own transfer" in "".join(cause["log_tail"])


def test_a_dead_dispatcher_host_fails_the_job_and_is_named(toy_victim):
    job = toy_victim(LONG)
    kill_host(job, "algo-1")
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run, without=["algo-1"])
    assert run.summary["root_cause"]["host"] == "algo-1"


def test_a_host_cut_off_for_good_ends_the_job_on_both_sides(toy_victim):
    job = toy_victim(LONG)
    cut_off(job, "algo-1")
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    assert run.summary["root_cause"]["host"] == "algo-1"
    assert "has not contacted this host" in run.log("algo-1")


def test_a_worker_that_keeps_dying_is_given_up(toy_victim):
    job = toy_victim(LONG, "--hyperparameter=max_restarts=2")
    pids = set()
    while job.process.poll() is None and len(pids) < 4:
        try:
            worker = process_of(job.folder.name, "algo-2", WORKER)
        except AssertionError:
            time.sleep(0.05)
            continue
        if worker.pid not in pids:
            pids.add(worker.pid)
            worker.kill()
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    cause = run.summary["root_cause"]
    assert (cause["host"], cause["role"], cause["signal"]) == ("algo-2", "worker", "SIGKILL")
    assert "after 2 restarts" in cause["message"]


def test_a_hung_rank_is_found_by_the_watchdog_with_stacks(toy_victim):
    job = toy_victim(LONG, "--hyperparameter=stall_timeout_s=20")
    kill(job, "algo-3", RANK, signal.SIGSTOP)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    cause = run.summary["root_cause"]
    assert cause["role"].startswith("rank") and "suspended" in cause["message"]
    assert run.log("algo-3").count("most recent call first") >= 2


def test_a_hung_dispatcher_is_found_by_the_watchdog(victim):
    job = victim(LONG, "--hyperparameter=stall_timeout_s=20")
    kill(job, "algo-1", DISPATCHER, signal.SIGSTOP)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    cause = run.summary["root_cause"]
    assert (cause["host"], cause["role"]) == ("algo-1", "dispatcher")
    assert "waited for data" in cause["message"]


# Requests to stop


def test_sigterm_to_a_data_host_gets_a_checkpoint_and_an_orderly_end(victim):
    job = victim(LONG)
    kill(job, "algo-1", LAUNCHER, signal.SIGTERM)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    assert run.summary["root_cause"]["message"] == "was stopped by SIGTERM"
    after = run.log("algo-3").partition("asking rank 0 for a checkpoint")[2]
    last = [line for line in after.splitlines() if "event=checkpoint " in line][-1]
    assert "event=step " not in after.partition(last)[2], "training went on after the checkpoint that was asked for"
    saved = sorted(path.name for path in (run.folder / "algo-3" / "checkpoints").iterdir())
    assert last.rpartition("/")[2] in saved  # one more checkpoint may be there, without a line in the log


# Problems of a host itself


@pytest.mark.parametrize(
    ("option", "folder", "said"),
    [
        pytest.param("ro", "/opt/ml/model", "Read-only file system", id="read-only model folder"),
        pytest.param("size=64k", "/opt/ml/checkpoints", "No space left", id="full disk"),
    ],
)
def test_a_folder_that_cannot_be_written_is_the_root_cause(victim, option, folder, said):
    job = victim(
        "--training_script=train_dnn.py",
        "--epochs=1",
        "--steps_per_epoch=3",
        "--batch_size=4",
        "--hyperparameter=model=small_cnn",
        "--no-is_hetero",
        stepping=False,
    )
    log = job.folder / "algo-1.log"
    wait_for(lambda: log.is_file() and "event=topology" in log.read_text(), "the launcher")
    pid = process_of(job.folder.name, "algo-1", LAUNCHER).pid
    in_namespace_of(pid, "mount", "-t", "tmpfs", "-o", option, "tmpfs", folder)
    run = finish(job.process, job.folder)
    assert_failed_everywhere(run)
    cause = run.summary["root_cause"]
    assert said in "\n".join([cause["message"], *cause["log_tail"]])
