"""A host starts the right number of ranks in the right environment, and recognizes their processes."""

from pathlib import Path

import pytest
from headrace.cluster.sagemaker import topology_from
from headrace.host.host_plan import HostPlan, python_environ, trainer_environ
from headrace.host.mpi import rank_processes
from headrace.host.usage import gpus
from headrace.job.settings import Settings

from tests.unit.test_topology import hetero, homogeneous


class Process:
    """A process with psutil's interface."""

    def __init__(self, pid, **environ):
        self.pid, self._environ = pid, environ

    def environ(self):
        return self._environ

    def cmdline(self):
        return ["python", "-m", "headrace.rank", "-m", "mpi4py", "train.py"]


@pytest.mark.parametrize(
    ("given", "environ", "files", "ranks"),
    [
        (0, {}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2), (0, {"SM_NUM_GPUS": "0"}, ["nvidia0"], 1),
        (0, {"SM_NUM_GPUS": "8"}, ["nvidia0"], 8), (3, {}, ["nvidia0"], 3), (0, {}, [], 1),
    ],
)  # fmt: skip
def test_a_host_has_a_rank_for_each_gpu_that_is_there_unless_the_user_says_how_many(
    tmp_path, monkeypatch, given, environ, files, ranks
):
    for each in files:
        (tmp_path / each).touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    plan = HostPlan(topology_from(homogeneous(), "test"), Settings(processes_per_host=given), Path(), [], environ)
    assert plan.ranks_per_host == ranks


def test_what_a_rank_has_forked_is_not_taken_for_the_rank(monkeypatch):
    ranks = [Process(1), *(Process(pid, OMPI_COMM_WORLD_RANK=rank) for pid, rank in ((2, "0"), (3, "1"), (4, "0")))]
    monkeypatch.setattr(rank_processes, "descendants", lambda: ranks)  # parents first
    assert {name: each.pid for name, each in rank_processes.rank_processes().items()} == {"rank0": 2, "rank1": 3}


@pytest.mark.parametrize(
    ("framework", "length", "own"), [("pytorch", 3, True), ("pytorch", 80, False), ("tensorflow", 80, True)]
)
def test_temporary_files_are_the_hosts_own_where_torchs_sockets_have_room(framework, length, own):
    settings = Settings(framework=framework, base_dir=Path("/") / ("r" * length) / "algo-1")
    plan = HostPlan(topology_from(homogeneous(), "test"), settings, Path("/code"), [], {})
    assert python_environ(plan).get("TMPDIR") == (str(plan.paths.work_dir) if own else None)


@pytest.mark.parametrize(
    ("ranks", "given", "told"),
    [(1, {}, "5"), (2, {}, None), (1, {"HOROVOD_CYCLE_TIME": "1"}, "1")],
)
def test_horovods_thread_looks_for_work_each_millisecond_only_where_ranks_have_others(ranks, given, told):
    settings = Settings(processes_per_host=ranks)
    topology = topology_from(hetero(current_host="algo-3"), "test")
    plan = HostPlan(topology, settings, Path("/code"), [], given)
    assert trainer_environ(plan, {}).get("HOROVOD_CYCLE_TIME") == told
