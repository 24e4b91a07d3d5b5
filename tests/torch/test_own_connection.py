"""A script that connects the ranks itself: as torchrun's, or as scripts for SageMaker's own launcher did."""

import pytest
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch.own_connection import look_after_connection

LAUNCHERS = {"HEADRACE_MASTER": "127.0.0.1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "1",
             "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
             "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20000"}  # fmt: skip


@pytest.fixture
def connect(monkeypatch):
    """`init_process_group` in a rank whose script has set some variables; tells how torch's own was called."""

    def connected(*arguments, environ=None, **options):
        for name, value in (LAUNCHERS | (environ or {})).items():
            monkeypatch.setenv(name, value)
        calls = []

        def recorded(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
            calls.append((backend, world_size, rank))

        monkeypatch.setattr(dist, "init_process_group", recorded)
        look_after_connection()
        dist.init_process_group(*arguments, **options)
        return calls

    return connected


@pytest.mark.parametrize(
    "options",
    [{}, {"init_method": "env://"}, {"world_size": 2, "rank": 1}, {"environ": {"MASTER_ADDR": "localhost"}},
     {"init_method": "tcp://127.0.0.1:1", "world_size": 2, "rank": 1}, {"environ": {"MASTER_PORT": "7777"}},
     {"environ": {"HEADRACE_MASTER": "10.1.2.3", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "localhost"}},
     {"store": dist.HashStore(), "world_size": 1, "rank": 0}],
)  # fmt: skip
def test_the_launchers_ranks_are_connected(connect, options):
    assert len(connect("gloo", **options)) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"environ": {"WORLD_SIZE": "3"}}, "3 ranks, and the launcher 2: hosts of the data group are no ranks"),
        ({"world_size": 3, "rank": 0}, "3 ranks, and the launcher 2"),
        ({"environ": {"RANK": "0"}}, "0 as this one's number, and the launcher 1"),
        (
            {"environ": {"HEADRACE_MASTER": "10.1.2.3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "localhost"}},
            "MASTER_ADDR=localhost, and rank 0 is on 10.1.2.3",
        ),
        ({"environ": {"MASTER_ADDR": "127.0.0.2"}}, "MASTER_ADDR=127.0.0.2, and rank 0 is on 127.0.0.1"),
    ],
)
def test_ranks_counted_by_hosts_are_refused_before_they_wait_for_each_other(connect, options, problem):
    with pytest.raises(InputError, match=problem):
        connect("gloo", **options)


def test_without_a_launcher_nothing_is_looked_at(monkeypatch):
    monkeypatch.delenv("HEADRACE_MASTER", raising=False)
    before = dist.init_process_group
    look_after_connection()
    assert dist.init_process_group is before
