"""torch.distributed must use the launcher's rank numbers. Reports of waiting ranks name the script's line."""

import contextlib
import sys

import pytest
import torch
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch import distributed
from headrace.torch.distributed import check_world, place_in_script
from torch.utils import _pytree

LAUNCHERS = {
    "HEADRACE_MASTER": "127.0.0.1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "20000",
}
HOSTS_COUNTED = "rank 1 of 3, but the launcher started it as rank 1 of 2: hosts of the data group are not"


@pytest.fixture
def launched(monkeypatch):
    """Function that sets the launcher's variables for rank 1 of 2. Arguments are variables that the script changed."""
    monkeypatch.setattr(distributed, "_watched", True)  # so that no thread starts

    def set_environ(**changed):
        for name, value in (LAUNCHERS | changed).items():
            monkeypatch.setenv(name, value)

    return set_environ


@contextlib.contextmanager
def connected(**options):
    """Context with a process group that the script made."""
    dist.init_process_group("gloo", **options)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("changed", [{}, {"MASTER_PORT": "7777"}, {"MASTER_ADDR": "10.9.9.9"}])
def test_the_launchers_ranks_are_accepted(launched, changed):
    launched(**changed)
    check_world()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"WORLD_SIZE": "3"}, HOSTS_COUNTED),
        ({"RANK": "0"}, "rank 0 of 2, but the launcher started it as rank 1"),
    ],
)
def test_ranks_counted_by_hosts_in_the_environment_are_refused_before_they_wait_for_each_other(
    launched, changed, problem
):
    launched(**changed)
    for refuses in (check_world, distributed.init):
        with pytest.raises(InputError, match=problem):
            refuses()


def test_a_connected_world_of_other_ranks_is_refused(launched, tmp_path):
    launched()
    with connected(init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1):
        for refuses in (check_world, distributed.init):
            with pytest.raises(InputError, match="rank 0 of 1, but the launcher started it as rank 1 of 2"):
                refuses()


def test_a_connected_world_counts_and_not_what_the_environment_says(launched, tmp_path):
    launched(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1", RANK="3", WORLD_SIZE="7")
    with connected(init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1):
        check_world()


def test_a_world_that_each_process_has_for_itself_is_accepted(launched):
    launched()
    with connected(store=dist.HashStore(), rank=0, world_size=1):
        check_world()
        assert distributed.store_of_ranks() is None


def test_without_a_launcher_the_script_may_count_ranks_as_it_likes(launched, monkeypatch):
    launched(WORLD_SIZE="5", RANK="4")
    monkeypatch.delenv("HEADRACE_MASTER")
    check_world()
    assert (distributed.rank(), distributed.world_size()) == (4, 5)


def test_without_a_launcher_init_connects_the_process_with_itself(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    distributed.init("gloo")
    try:
        distributed.init("gloo")
        assert (dist.get_world_size(), distributed.from_rank_0(b"state")) == (1, b"state")
    finally:
        dist.destroy_process_group()


def test_the_place_of_a_thread_is_the_scripts_innermost_line_below_library_code():
    told = []

    def look(_):
        frame_of_torch = sys._getframe(1)
        told.append((frame_of_torch.f_code.co_filename, place_in_script(frame_of_torch)))

    _pytree.tree_map(look, [1])
    line = sys._getframe().f_lineno - 1
    assert "site-packages" in told[0][0]
    assert told[0][1] == f"test_distributed.py:{line}"


@pytest.mark.parametrize("file", [contextlib.__file__, distributed.__file__, "<string>"])
def test_code_of_python_of_headrace_and_without_a_file_is_not_the_scripts(file):
    namespace = {}
    exec(compile("import sys\nframe = sys._getframe()", file, "exec"), namespace)
    frame = namespace["frame"]
    assert frame.f_code.co_filename == file
    assert place_in_script(frame).startswith("test_distributed.py:")


def test_a_thread_that_runs_no_script_has_no_place():
    assert place_in_script(None) == ""


@pytest.mark.parametrize(
    ("backend", "ranks", "gpus", "told"), [("nccl", 2, 1, True), ("nccl", 2, 2, False), ("gloo", 2, 1, False)]
)
def test_ranks_that_share_a_gpu_are_told_what_to_set_unless_gloo_connects_them(
    launched, monkeypatch, capsys, backend, ranks, gpus, told
):
    launched(RANK="0", OMPI_COMM_WORLD_RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(ranks))
    monkeypatch.setattr(distributed, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    distributed.init(backend)
    said = capsys.readouterr().out
    assert ("Set --processes_per_host 1, or share GPUs with headrace.torch.init('gloo')" in said) == told
