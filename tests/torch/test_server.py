"""A feed server serves only the job's ranks, and runs the script only as far as they need it."""

import contextlib
import re
import socket
import threading

import pytest
from headrace.errors import InputError
from headrace.torch.feed import protocol
from headrace.torch.feed.client import wait_until_known
from headrace.torch.feed.server import FeedServer
from headrace.torch.fetch.iterable_fetcher import ShardRequest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.support import wait_for
from tests.torch.draws import Draws, Lines, indices
from tests.torch.jobs import SCRIPTS
from tests.torch.script_runs import SECRET


def test_who_does_not_hold_the_secret_gets_nothing_and_delays_nobody(feeds):
    address = feeds.serve(1, Draws(), 4)
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        strangers = [b"GET / HTTP/1.1\r\n\r\n", bytes(1000), protocol.HANDSHAKE.magic + bytes(48)] * 10
        for said in strangers + [b""] * 300:
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(said)
        with pytest.raises(OSError, match=r"secret|closed the connection"):
            protocol.HANDSHAKE.enter(address, "wrong")
        assert indices(feeds.loader([address], Draws(), 4)) == list(range(53))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from(["a stranger to the protocol", "a rank", "a rank with nonsense"]))
def test_nonsense_after_the_handshake_harms_nobody(feeds, said, who):
    if not feeds.servers:
        feeds.address = feeds.serve(1, Draws(), 4)
    server = feeds.servers[0]
    with protocol.HANDSHAKE.enter(feeds.address, SECRET) as connection:
        if who == "a rank with nonsense":
            protocol.send_record(connection, {"loader": said.hex(), "slot": len(said), "config": [said.hex()]})
        elif who == "a rank":
            config = server._loaders["0"].config
            protocol.send_record(connection, {"loader": "0", "slot": 0, "config": config})
            assert protocol.receive_record(connection) == {"processes": 1, "problem": ""}
        with contextlib.suppress(OSError):
            connection.sendall(said)
    assert server._pool._workers[0][0].is_alive()


def test_a_wrong_request_for_a_shard_harms_nobody(feeds):
    address = feeds.serve(1, Lines(), 2)
    hello = {"loader": "0", "slot": 0, "config": feeds.servers[0]._loaders["0"].config}
    right = ShardRequest(0, 0, 0, 1, 0, 2, False).as_json()
    for wrong in {"shard": "0"}, {"number": -1}, {"batch_size": 0.5}, {"epoch": None}, {"drop_last": {}, "more": 1}:
        with protocol.HANDSHAKE.enter(address, SECRET) as connection, contextlib.suppress(OSError):
            protocol.send_record(connection, hello)
            assert protocol.receive_record(connection) == {"processes": 1, "problem": ""}
            protocol.send_record(connection, right | wrong)
            assert protocol.receive_head(connection)[0] == protocol.FAILED
    assert feeds.servers[0]._pool._workers[0][0].is_alive()
    assert len(list(feeds.loader([address], Lines(), 2))) == 16


def test_a_server_that_says_nonsense_ends_the_rank_with_an_error(feeds):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        loader = feeds.loader([address], Draws(), 4)

        def answer():
            for _ in range(2):  # the first connection only asks whether the server has the loader
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, InputError):
                    protocol.HANDSHAKE.admit(connection, address, SECRET)
                    protocol.receive_record(connection)
                    protocol.send_record(connection, {"processes": 1, "problem": ""})
                    protocol.receive_record(connection)
                    header = b'{"batch":{"memory":0},"memory":[{"tensor":"uint8","shape":[99]}],"skipped":[]}'
                    protocol.send_answer(connection, protocol.BATCH, header)
                    protocol.receive_record(connection)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(InputError, match=r"announce"):
            next(iter(loader))


def hello(loader, late=False):
    return {"loader": loader.key, "config": loader.config, "late": late}


def test_a_server_goes_on_to_a_loader_that_the_script_makes_after_a_pass_and_no_further(feeds, monkeypatch):
    first, second = (feeds.loader([], Draws(size), 4, name=f"of {size}") for size in (8, 53))
    port = free_port()
    address = f"127.0.0.1:{port}"
    server = FeedServer(address, port, SECRET, 1, 30.0)
    went_on = threading.Event()

    def script():
        server.serve({first.key: first})
        went_on.set()
        with contextlib.suppress(SystemExit):
            server.start({first.key: first, second.key: second})
            server.serve_for_good()

    thread = threading.Thread(target=script, daemon=True)
    thread.start()
    try:
        assert wait_until_known([address], SECRET, hello(first), 20)
        assert not wait_until_known([address], SECRET, hello(second), 20), "the server made the second loader too soon"
        assert not went_on.is_set(), "the script went on before a rank asked for a later loader"
        assert wait_until_known([address], SECRET, hello(second, late=True), 20) and went_on.is_set()
        wait_for(lambda: server._for_good, "training on the server's script")
        unknown = feeds.loader([], Draws(9), 4, name="of 9")
        assert not wait_until_known([address], SECRET, hello(unknown, late=True), 20)
        assert indices(feeds.loader([address], Draws(53), 4, name="of 53")) == list(range(53))
    finally:
        server.close()
        thread.join(10)


def test_a_server_of_a_script_that_it_cannot_run_ends_and_says_what_to_do(runs):
    expected = {
        "another loader": "trains before it takes a batch",
        "spawn": "makes loaders in processes that it starts itself",
        "no batch": "took no batch of a headrace.torch.DataLoader",
        "needs a GPU": "fails on a data host, before its first batch: AssertionError: needs a GPU",
    }
    started = {how: runs.start_server(SCRIPTS / "unfit.py", f"--how={how}") for how in expected}
    for how, (process, port) in started.items():
        code = process.wait(120)
        assert expected[how] in runs.said(f"server{port}"), how
        assert code == InputError.exit_code or (how in ("another loader", "no batch") and code), how


def test_right_scripts_train_alike_in_both_modes(runs):
    """A correct script may change objects during training. Even then, both modes make equal batches."""
    script = SCRIPTS / "right.py"
    local = runs.train(script, world=2)
    remote = runs.train(script, addresses=[runs.serve(script)], world=2)
    assert [said.count("trained") for said in local] == [7, 7], local
    for here, there in zip(local, remote, strict=True):
        assert re.findall("trained.*", here) == re.findall("trained.*", there)
        assert "on data hosts: True" in there and "on data hosts: False" in here


def test_what_a_script_holds_while_it_trains_is_there_where_its_batches_are_made(runs):
    script = SCRIPTS / "held.py"
    (said,) = runs.train(script, addresses=[runs.serve(script)])
    assert "seen: 240, wrong: 0, on data hosts: True" in said
