"""Faults in whole PyTorch jobs on simulated hosts."""

import json
import re

import pytest

from tests.faults.breakage import FEED, RANK, kill, kill_host
from tests.support import finish, wait_for
from tests.torch.jobs import needs_namespaces


@needs_namespaces
def test_killed_feed_servers_come_back_and_a_lost_data_host_is_named(victim):
    job = victim("--epochs=24")
    kill(job, "algo-1", FEED)
    kill(job, "algo-3", FEED)
    wait_for(lambda: job.text().count("event=restarted role=worker") == 2, "the servers' restarts")
    job.wait_for_steps(2)
    kill_host(job, "algo-2")
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert run.summary["hosts"]["algo-1"]["restarts"]["worker"] == 1
    assert [host for host, record in run.summary["hosts"].items() if record["lost"]] == ["algo-2"]


@needs_namespaces
def test_a_killed_rank_ends_the_job_and_is_the_root_cause(victim):
    job = victim("--epochs=200", "--num_of_data_instances=1", "--local_workers=off")
    kill(job, "algo-2", RANK)
    run = finish(job.process, job.folder)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert re.search(r"rank\d.* SIGKILL", f"{cause['role']} {cause['message']}"), cause


@needs_namespaces
@pytest.mark.parametrize(
    ("how", "message"),
    [("hangs", "no step was made for"), ("ends", "its script has ended, and rank0 waits for it in a collective")],
)
def test_a_rank_that_hangs_or_ends_alone_ends_the_job_within_the_stall_timeout(victim, how, message):
    limit = "--hyperparameter=stall_timeout_s=10"
    job = victim("--no-is_hetero", "--epochs=200", f"--hyperparameter={how}=30", limit)
    run = finish(job.process, job.folder)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert message in cause["message"] and cause["role"] == "rank1", cause


@needs_namespaces
def test_training_goes_on_without_a_feed_server_that_is_late_beside_a_busy_trainer(victim):
    job = victim("--num_of_data_instances=1", "--epochs=24", "--hyperparameter=late_on=algo-2")
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-4000:]
    # The leader may hear of algo-1's server only after the ranks have its first batch.
    assert re.search(r"still waiting for (1 feed server on algo-1 and )?1 feed server on algo-2; late", run.output)
    data, beside = (run.summary["workers"][f"{host}/worker"] for host in ("algo-1", "algo-2"))
    assert data["share"] == {"0": 1.0, "1": 1.0} and data["batches"] >= 24 * 80
    assert beside["batches"] == 0 and beside["share"] == {}
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    delivered = [each["workers"]["algo-1/worker"] for each in records if "workers" in each]
    # An interval without a batch, such as the one in which the ranks end, has zeros.
    assert any(each["batches_per_s"] > 0 and each["bytes_per_s"] > 0 for each in delivered)


@needs_namespaces
def test_a_sample_that_raises_is_the_root_cause_with_host_index_and_traceback(victim):
    job = victim("--hyperparameter=broken=77", "--num_of_data_instances=1", stepping=False)
    run = finish(job.process, job.folder)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert re.search(r"SampleError: sample 77 raised ValueError: no number 77 .*\[on algo-\d:6001", cause["message"])
    assert any("in __getitem__" in line for line in cause["log_tail"]), cause
