"""The hosts of a job share a secret. A job whose hosts cannot share one is refused."""

import dataclasses

import pytest
from headrace.cluster.sagemaker import topology_from
from headrace.errors import InputError
from headrace.host.control.secret import derived_secret, with_secret
from headrace.host.host_plan import HostPlan, ToolkitRank
from headrace.job.settings import PLACEHOLDER_SECRET, Settings

ARN = {"TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:1:training-job/a"}


def topology(*hosts, current="algo-1"):
    return topology_from({"current_host": current, "hosts": list(hosts)}, "test")


def test_a_job_keeps_its_own_secret():
    settings = with_secret(Settings(secret="s"), topology("algo-1", "algo-2"), ARN)
    assert (settings.secret, settings.secret_is_derived) == ("s", False)


def test_without_one_hosts_share_what_the_arn_stands_for(capsys):
    settings = with_secret(Settings(), topology("algo-1", "algo-2"), ARN)
    assert settings.secret_is_derived
    assert "derived from the job's ARN" in capsys.readouterr().err
    assert settings.secret == derived_secret(ARN["TRAINING_JOB_ARN"]) != derived_secret("arn:b")


def test_a_host_alone_makes_one_up():
    one, other = (with_secret(Settings(), topology("algo-1"), {}) for _ in range(2))
    assert len(one.secret) == 64
    assert one.secret != other.secret


def test_launchers_of_one_host_that_the_toolkit_starts_share_one():
    launchers = [with_secret(Settings(), topology("algo-1"), ARN, ToolkitRank(rank, rank)) for rank in range(2)]
    assert launchers[0].secret == launchers[1].secret


def test_several_hosts_that_know_nothing_of_each_other_are_refused():
    with pytest.raises(InputError, match="neither HEADRACE_JOB_SECRET nor TRAINING_JOB_ARN is set"):
        with_secret(Settings(), topology("algo-1", "algo-2"), {})


def test_what_a_dry_run_prints_is_no_secret():
    with pytest.raises(InputError, match="a random text"):
        with_secret(Settings(secret=PLACEHOLDER_SECRET), topology("algo-1"), ARN)


@pytest.mark.parametrize(
    ("changes", "rank", "refused"),
    [
        ({"secret_is_derived": True}, None, True),
        ({"secret_is_derived": True, "trust_network": True}, None, False),
        ({"secret_is_derived": True}, ToolkitRank(0, 0), False),
        ({}, None, False),
    ],
    ids=["derived", "derived, and nobody else is there", "derived, and the toolkit starts MPI", "a secret"],
)
def test_programs_are_started_through_mpi_only_for_who_holds_a_secret(tmp_path, changes, rank, refused):
    settings = dataclasses.replace(Settings(secret="s"), **changes)
    plan = HostPlan(topology("algo-1", "algo-2"), settings, tmp_path, [], {}, rank)
    if refused:
        with pytest.raises(InputError, match="HEADRACE_TRUST_NETWORK=1"):
            plan.refuse_open_launch()
    else:
        plan.refuse_open_launch()


@pytest.mark.parametrize(("current", "takes"), [("algo-1", False), ("algo-2", True)])
def test_only_hosts_that_follow_the_leader_take_an_mpi_daemon(tmp_path, current, takes):
    plan = HostPlan(topology("algo-1", "algo-2", current=current), Settings(secret="s"), tmp_path, [], {})
    assert plan.takes_mpi_daemon == takes
