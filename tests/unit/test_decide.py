"""The leader decides from the history of events whether a job has to end, and why."""

import io
from pathlib import Path

import pytest
from headrace.cluster.run_files import WORK_DIR_VARIABLE
from headrace.cluster.sagemaker import topology_from
from headrace.errors import DeadlineError
from headrace.events import CHECKPOINTS_ON_REQUEST, RANK_FAILED, RANK_LEAVING, Event
from headrace.host.host_plan import HostPlan
from headrace.host.inbox import (
    HostAnswered,
    HostInformed,
    HostSilent,
    Inbox,
    RankSaid,
    StopAsked,
)
from headrace.host.leader.decide import Decider
from headrace.host.leader.peers import Hosts
from headrace.host.log import HostLog
from headrace.host.services.tf_data import TfDataService
from headrace.host.state import HostState
from headrace.host.usage.host_usage import ResourceUsage
from headrace.job.settings import Settings
from headrace.outcome import RootCause

# algo-1: data, with the dispatcher; algo-2: data; algo-3: dnn, leads; algo-4: dnn.
GROUPS = [
    {"instance_group_name": "data_group", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1", "algo-2"]},
    {"instance_group_name": "dnn_group", "instance_type": "ml.p3.2xlarge", "hosts": ["algo-3", "algo-4"]},
]
TOPOLOGY = topology_from(
    {"current_host": "algo-3", "hosts": [f"algo-{n}" for n in range(1, 5)], "instance_groups": GROUPS}, "test"
)
OFFER = {"worker": "headrace"}


class Job:
    """The leader's state and decisions, without threads, sockets and a clock."""

    def __init__(self, tmp_path, **settings):
        self.out = io.StringIO()
        settings = Settings(startup_timeout_s=100, lease_s=10, processes_per_host=1, **settings)
        log = HostLog("algo-3", self.out)
        plan = HostPlan(TOPOLOGY, settings, Path("code"), [], {WORK_DIR_VARIABLE: str(tmp_path)})
        plan.paths.signal_dir.mkdir()
        self.service = TfDataService(plan)
        self.own = HostState("algo-3", ResourceUsage(lambda: []), self.service, Inbox(), lambda: [])
        self.hosts = Hosts(TOPOLOGY.peers(), settings.lease_s)
        self.decider = Decider(plan, self.service, self.own, self.hosts, log)

    def happened(self, *history):
        for stamped in history:
            for take in (self.own.take, self.hosts.take, self.decider.take):
                take(stamped)
        return self

    def cause(self, now, stepping=True):
        verdict = self.decider.verdict(now, stepping)
        return verdict and verdict.cause

    def reports(self, **by_host):
        return {host.replace("_", "-"): report for host, report in by_host.items()}


def answered(at, host, **status):
    return at, HostAnswered(host, {"servers_started": True, **status})


def all_answered(at):
    return [answered(at, host) for host in ("algo-1", "algo-2", "algo-4")]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_hosts_that_answer_within_their_lease_end_nothing(job):
    assert job.happened(*all_answered(0), *all_answered(8)).cause(17) is None


def test_a_failed_call_ends_nothing_while_the_lease_runs(job):
    job.happened(*all_answered(0), (2, HostSilent("algo-1", "unavailable")), *all_answered(9))
    assert job.cause(18) is None


@pytest.mark.parametrize("host", ["algo-1", "algo-4"])
def test_the_job_cannot_do_without_the_dispatchers_host_or_a_dnn_host(job, host):
    others = [each for each in ("algo-1", "algo-2", "algo-4") if each != host]
    job.happened(*all_answered(0), (5, HostSilent(host, "unavailable")), *(answered(9, each) for each in others))
    assert job.cause(11).host == host
    assert f"event=host_lost host={host}" in job.out.getvalue()


def test_another_data_host_is_given_up_and_the_job_goes_on(job):
    job.happened(*all_answered(0), answered(9, "algo-1"), answered(9, "algo-4"))
    assert job.cause(11) is None
    assert job.hosts.lost == ["algo-2"]
    assert job.happened(answered(12, "algo-2", failure={"role": "worker"})).cause(12) is None  # too late


def test_unless_fewer_than_min_data_hosts_would_be_left(tmp_path):
    job = Job(tmp_path, min_data_hosts=2)
    job.happened(*all_answered(0), answered(9, "algo-1"), answered(9, "algo-4"))
    assert "min_data_hosts is 2" in job.cause(11).message


def test_a_hosts_failure_is_the_jobs(job):
    told = RootCause("algo-2", "worker", "was killed by SIGKILL after 5 restarts", 7, signal="SIGKILL").as_json()
    assert job.happened(*all_answered(0), answered(1, "algo-2", failure=told)).cause(1).process == "worker"


def test_an_mpi_daemons_end_waits_for_mpiruns_word(job):
    told = RootCause("algo-4", "orted", "exited with 1", 7, 1).as_json()
    job.happened(*all_answered(0), answered(1, "algo-4", failure=told))
    assert job.cause(1) is None
    assert job.cause(8.5) is None
    assert job.cause(9.5).process == "orted"


def test_this_hosts_own_failure_comes_first(job):
    job.own.fail(RootCause("algo-3", "mpirun", "exited with 3", 9, 3))
    told = RootCause("algo-2", "worker", "exited with 1", 7, 1).as_json()
    assert job.happened(answered(0, "algo-2", failure=told)).cause(1).process == "mpirun"


def test_a_stop_request_to_any_host_ends_the_job_after_a_checkpoint(job, tmp_path):
    job.happened(*all_answered(0), (0, RankSaid(Event(CHECKPOINTS_ON_REQUEST, {}))))
    job.happened(answered(1, "algo-2", stop_signal="SIGTERM"))
    assert job.cause(1) is None
    assert (tmp_path / "signals" / "stop").exists()
    job.happened((2, RankSaid(Event("checkpoint", {}))))
    assert (job.cause(2).host, job.cause(2).signal) == ("algo-2", "SIGTERM")


def test_a_stop_request_before_the_first_step_ends_the_job_at_once(job):
    assert job.happened((1, StopAsked("SIGINT"))).cause(1, stepping=False).signal == "SIGINT"


def test_a_preflight_that_does_not_begin_is_a_stall(tmp_path):
    job = Job(tmp_path, preflight="first", preflight_timeout_s=5)
    job.decider.ranks.begin(10)
    assert job.cause(14) is None
    verdict = job.decider.verdict(16, stepping=False)
    assert verdict.stalled
    assert "MPI has not started" in verdict.cause.message


def test_ranks_that_have_all_left_are_given_a_while_to_end_and_the_job_is_over(job):
    job.happened((1, RankSaid(Event(RANK_LEAVING, {"rank": "0"}))), (1, RankSaid(Event(RANK_LEAVING, {"rank": "0"}))))
    assert not job.decider.is_over(100)  # rank 1 still works
    job.happened((100, RankSaid(Event(RANK_LEAVING, {"rank": "1"}))))
    assert not job.decider.is_over(129)
    assert job.decider.is_over(131)
    assert job.cause(131) is None


def test_a_rank_that_has_failed_fails_the_job_after_a_while_though_mpi_ends_nobody(job):
    job.happened((1, RankSaid(Event(RANK_FAILED, {"rank": "1"}))))
    assert job.cause(30) is None
    assert job.decider.verdict(32, stepping=True).ask_ranks


def test_who_has_heard_the_outcome_is_known(job):
    assert job.happened((1, HostInformed("algo-2"))).hosts.informed == {"algo-2"}


def test_the_trainer_waits_for_dnn_hosts_and_what_is_installed_there(job):
    assert job.decider.missing_for_trainer() == ["first contact with algo-4"]
    job.happened((1, HostAnswered("algo-4", {"servers_started": False})))
    assert job.decider.missing_for_trainer() == ["the servers on algo-4 to start"]
    job.happened(answered(2, "algo-4", installing=True))
    assert job.decider.missing_for_trainer() == ["Horovod to be installed on algo-4"]
    job.happened(answered(3, "algo-4"))
    assert job.decider.missing_for_trainer() == []


def test_ranks_wait_for_every_worker_to_register(job):
    job.happened(*all_answered(0))
    said = job.reports(algo_1={"offers": OFFER}, algo_2={"offers": OFFER}, algo_3={"offers": OFFER})
    assert job.decider.missing_for_data(said) == ["tf.data workers: 1 not started yet"]
    assert job.service.decide(said, [], 0) is None
    said["algo-4"] = {"offers": OFFER}
    decision = job.service.decide(said, [], 1)
    assert decision.fields == {"protocol": "headrace"}
    job.service.hear(decision.fields)
    said["algo-1"] = {"offers": OFFER, "registered_workers": 3}
    assert job.decider.missing_for_data(said) == ["tf.data workers: 3 of 4 registered at algo-1"]
    said["algo-1"] = {"offers": OFFER, "registered_workers": 4}
    assert job.decider.missing_for_data(said) == []


def test_one_worker_that_can_only_do_grpc_decides_for_all(job):
    said = {f"algo-{n}": {"offers": {"worker": "grpc" if n == 2 else "headrace"}} for n in range(1, 5)}
    decision = job.service.decide(said, [], 0)
    assert decision.fields == {"protocol": "grpc"}
    assert "algo-2/worker can use only gRPC" in decision.note


def test_a_late_data_host_is_waited_for_a_while_before_ranks_read(job):
    said = {f"algo-{n}": {"offers": OFFER} for n in (1, 3, 4)}
    assert job.service.decide(said, [], 10) is None
    assert job.service.decide(said, [], 69) is None
    assert job.service.decide(said, [], 71).fields == {"protocol": "headrace"}


def test_after_the_startup_timeout_a_data_host_that_never_came_is_given_up(job):
    job.happened(answered(1, "algo-1"), answered(1, "algo-4"))
    job.decider.give_up(["first contact with algo-2"])
    assert job.hosts.lost == ["algo-2"]
    assert "continuing with algo-1" in job.out.getvalue()


def test_but_not_the_dispatchers_host(job):
    job.happened(answered(1, "algo-2"), answered(1, "algo-4"), (1, HostSilent("algo-1", "unavailable: no route")))
    with pytest.raises(DeadlineError, match=r"first contact with algo-1.*algo-1: unavailable: no route"):
        job.decider.give_up(["first contact with algo-1"])
