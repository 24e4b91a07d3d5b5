"""Who is nobody of ours gets nothing of a feed server, and harms nobody."""

import contextlib
import socket
import threading
import time

import pytest
from headrace.errors import InputError
from headrace.torch.feed import protocol as wire
from headrace.torch.feed_admission import MOST_AT_THE_DOOR
from headrace.training.handshake import LIMIT_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.torch.conftest import SECRET
from tests.torch.draws import Draws, indices


def test_who_does_not_hold_the_secret_gets_nothing_and_delays_nobody(feeds):
    address = feeds.serve(1, Draws(), 4)
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000), wire.HANDSHAKE.magic + bytes(48)) * 10:
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(said)
        with pytest.raises(OSError, match=r"secret|nothing"):
            wire.HANDSHAKE.enter(address, "wrong")
        assert indices(feeds.loader([address], Draws(), 4)) == list(range(53))


def test_connections_that_never_speak_keep_no_rank_out(feeds):
    address = feeds.serve(1, Draws(), 4)
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_AT_THE_DOOR + 50):
            stack.enter_context(socket.create_connection((host, int(port))))
        began = time.monotonic()
        assert indices(feeds.loader([address], Draws(), 4)) == list(range(53))
        assert time.monotonic() - began < LIMIT_S  # after that they are gone by themselves


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.booleans())
def test_nonsense_after_the_handshake_harms_nobody(feeds, said, introduced):
    if not feeds.servers:
        feeds.address = feeds.serve(1, Draws(), 4)
    with wire.HANDSHAKE.enter(feeds.address, SECRET) as connection:
        if introduced:
            about = feeds.servers[0]._loaders[0].about()
            wire.send_record(connection, {"loader": 0, "slot": 0, "about": about})
            wire.receive_record(connection)
        with contextlib.suppress(OSError):
            connection.sendall(said)
    assert feeds.servers[0]._processes[0].is_alive()


def test_a_server_that_says_nonsense_ends_the_rank_with_an_error(feeds):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        loader = feeds.loader([address], Draws(), 4, stall_timeout_s=5)
        batch = iter(loader)

        def answer():
            connection, _ = listener.accept()
            with connection:
                wire.HANDSHAKE.admit(connection, address, SECRET)
                wire.receive_record(connection)
                wire.send_record(connection, {"processes": 1, "problem": ""})
                wire.receive_record(connection)
                wire.send_answer(connection, wire.BATCH, b'{"batch":{"tensor":"uint8","shape":[99]},"skipped":[]}')
                time.sleep(1)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(InputError, match="more than was announced"):
            next(batch)
