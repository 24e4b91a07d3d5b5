"""A job on real Slurm: hosts get the right roles and report one outcome, results are kept, and no process remains."""

import json
import os
import re
import signal

import pytest

from tests.slurm.cluster import wait_until
from tests.slurm.jobs import FOR_EVER, state_of

TWO_AND_ONE = ["--num_of_data_instances=2", "--processes_per_host=2"]
TWO_AND_TWO = ["--num_of_data_instances=2", "--num_of_dnn_instances=2", "--processes_per_host=1"]
HOMOGENEOUS = ["--no-is_hetero", "--tf_data_mode=service", "--num_of_dnn_instances=2", "--processes_per_host=1"]


RANK, LAUNCHER, SLURMD = r"\S*python\S* -m headrace\.rank ", r"\S*python\S* \S*launcher\.py ", r"\S*slurmd -D "


def kill(cluster, host, pattern):
    """Kill the first process on a host whose command line begins with `pattern`."""
    pids = [pid for pid, command in cluster.processes(host).items() if re.match(pattern, command)]
    assert pids, (pattern, cluster.processes(host))
    os.kill(min(pids), signal.SIGKILL)


@pytest.mark.parametrize(
    ("flags", "roles", "ranks"),
    [
        (TWO_AND_TWO, {"cpu1": "data_group", "cpu2": "data_group", "gpu1": "dnn_group", "gpu2": "dnn_group"},
         ["gpu1", "gpu2"]),
        (HOMOGENEOUS, {"gpu1": "homogeneousCluster", "gpu2": "homogeneousCluster"}, ["gpu1", "gpu2"]),
    ],
    ids=["2 data hosts, 2 that train", "homogeneous"],
)  # fmt: skip
def test_a_job_trains_and_leaves_its_results_in_the_shared_folder(submit, cluster, flags, roles, ranks):
    job = submit("--hyperparameter=steps=5", *flags)
    assert job.wait_for_end() == "COMPLETED", job.text()
    assert job.summary["outcome"] == "succeeded"
    assert {name: host["group"] for name, host in job.summary["hosts"].items()} == roles
    for rank, host in enumerate(ranks):
        assert f"rank {rank} of 2 on {host} sees of Slurm []" in job.text()
    assert not cluster.left_behind()
    assert not [host for host in roles if (job.folder / host / "headrace").exists()], (
        "working files lie on the shared file system"
    )


def test_two_jobs_share_their_nodes(submit, cluster):
    jobs = [submit("--hyperparameter=steps=400", *TWO_AND_TWO) for _ in range(2)]
    for job in jobs:
        job.wait_for_steps()
    assert len({line for line in cluster.jobs() if "RUNNING" in line}) >= 2
    for job in jobs:
        assert job.wait_for_end() == "COMPLETED", job.text()
        assert job.summary["outcome"] == "succeeded"
    assert not cluster.left_behind()


def test_a_cancelled_job_saves_first_and_nothing_stays(submit, cluster):
    job = submit(FOR_EVER, *TWO_AND_ONE)
    job.wait_for_steps()
    job.cancel()
    assert job.wait_for_end().startswith("CANCELLED")
    assert job.summary["root_cause"]["message"] == "was stopped by SIGTERM"
    assert int((job.folder / "checkpoints" / "step").read_text()) > 0
    assert {event.fields["status"] for event in job.events("outcome")} == {"failed"}
    assert len(job.events("outcome")) == 3, "not every host has said how the job ended"
    assert not cluster.left_behind()


def test_a_preempted_job_makes_room_and_then_goes_on_from_its_checkpoint(submit, cluster):
    job = submit(FOR_EVER, *TWO_AND_ONE)
    job.wait_for_steps(3)
    urgent = cluster.slurm(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    ).strip()
    wait_until(lambda: state_of(urgent) == "COMPLETED", "end of the urgent job")
    saved = int((job.folder / "checkpoints" / "step").read_text())
    wait_until(lambda: len(job.events("first_step")) == 2, "second start")
    assert job.events("first_step")[1].fields["step"] == str(saved + 1)


def test_a_job_at_its_time_limit_is_asked_to_stop_early_enough_to_save(submit, cluster):
    # Slurm checks for due signals every 30 s and may send one 30 s early: here, 60 to 90 s after the job's start.
    job = submit(FOR_EVER, *TWO_AND_ONE, "--time=2")
    assert "--signal=TERM@30" in job.script
    job.wait_for_end()
    assert (job.folder / "checkpoints" / "step").exists(), job.text()
    assert job.summary["root_cause"]["message"] == "was stopped by SIGTERM"
    assert not cluster.left_behind()


def test_a_killed_rank_ends_the_job_on_all_nodes_with_its_name(submit, cluster):
    job = submit(FOR_EVER, *TWO_AND_TWO)
    job.wait_for_steps()
    kill(cluster, "gpu2", RANK)
    assert job.wait_for_end().startswith("FAILED")
    assert job.summary["root_cause"]["host"] == "gpu2", job.summary["root_cause"]
    assert "SIGKILL" in json.dumps(job.summary["root_cause"])
    assert len(job.events("outcome")) == 4
    assert not cluster.left_behind()


def test_a_killed_task_on_a_data_host_is_gone_on_without(submit, cluster):
    job = submit("--hyperparameter=steps=400", *TWO_AND_ONE)
    job.wait_for_steps()
    kill(cluster, "cpu2", LAUNCHER)
    assert job.wait_for_end() == "COMPLETED"
    assert job.summary["outcome"] == "succeeded", job.text()
    assert [event.fields["host"] for event in job.events("host_lost")] == ["cpu2"]
    assert not cluster.left_behind()


@pytest.fixture
def brought_back(cluster):
    """A list to which a test adds the hosts that it breaks; they are restarted after the test."""
    names = []
    yield names
    for name in names:
        cluster.bring_back(name)


def test_a_lost_data_node_is_gone_on_without_where_each_group_has_two_nodes(submit, cluster, brought_back):
    brought_back.append("cpu2")
    job = submit("--hyperparameter=steps=400", *TWO_AND_TWO, "--no-requeue")
    job.wait_for_steps()
    cluster.kill_host("cpu2")
    state = job.wait_for_end()
    assert job.summary["outcome"] == "succeeded", (state, job.text())
    assert not cluster.left_behind()


def test_a_lost_node_that_trains_ends_the_job(submit, cluster, brought_back):
    brought_back.append("gpu2")
    job = submit(FOR_EVER, *TWO_AND_TWO, "--no-requeue")
    job.wait_for_steps()
    cluster.kill_host("gpu2")
    state = job.wait_for_end()
    assert job.summary["outcome"] == "failed", (state, job.text())
    assert "gpu2" in json.dumps(job.summary["root_cause"])  # as the host, or in mpirun's message
    assert not cluster.left_behind()


def test_after_a_killed_slurmd_the_job_saves_and_ends_on_that_node_too(submit, cluster, brought_back):
    brought_back.append("cpu2")
    job = submit(FOR_EVER, *TWO_AND_ONE, "--no-requeue")
    job.wait_for_steps()
    kill(cluster, "cpu2", SLURMD)
    state = job.wait_for_end()  # Slurm gives up the node, and the job with it
    assert job.summary["root_cause"]["message"] == "was stopped by SIGTERM", (state, job.text())
    assert (job.folder / "checkpoints" / "step").exists()
    assert not cluster.left_behind()


def test_the_secret_is_in_its_file_alone(submit, cluster):
    job = submit(FOR_EVER, *TWO_AND_ONE)
    job.wait_for_steps()
    secret = (job.folder / "secret").read_text()
    shown = cluster.slurm("scontrol", "show", "job", "-dd", job.id) + cluster.slurm(
        "scontrol", "write", "batch_script", job.id, "-"
    )
    assert secret and secret not in shown + job.text()
