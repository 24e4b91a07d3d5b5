"""A batch is received whole, in whatever pieces it comes."""

import contextlib
import socket
import threading

import numpy as np
import pytest
from headrace.training import socket_buffers as wire

from tests.support import WAIT_S

SIZE = 3 << 20


@contextlib.contextmanager
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    with here, there:
        for each in (here, there):
            wire.prepare(each, WAIT_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WAIT_S * 1000))
        yield here, there


def sent(connection, whole, pieces):
    """Send `whole` in a thread, piece by piece. The sizes of the pieces are `pieces`, over and over."""

    def send():
        at, number = 0, 0
        while at < len(whole):
            size = pieces[number % len(pieces)]
            connection.sendall(whole[at : at + size])
            at, number = at + size, number + 1
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize("pieces", [[SIZE], [70_001, 1], [SIZE - 1, 1], [SIZE - wire._WAKE_BYTES + 1, 5_000]])
@pytest.mark.parametrize(
    "parts", [[SIZE], [1, SIZE - 1], [1000] * 2500 + [SIZE - 2_500_000], [SIZE // 2, 0, SIZE // 2]]
)
def test_a_batch_in_pieces_fills_its_buffers_and_what_follows_is_left(pieces, parts):
    whole = np.random.default_rng(0).integers(0, 256, SIZE + 100, np.uint8)
    buffers = [np.zeros(size, np.uint8) for size in parts]
    with pair() as (here, there):
        sent(there, memoryview(whole), pieces)
        wire.receive_into(here, [memoryview(each) for each in buffers])
        assert np.array_equal(np.concatenate(buffers), whole[:SIZE])
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        assert here.recv(200, socket.MSG_WAITALL) == bytes(whole[SIZE:])


@pytest.mark.parametrize("comes", [0, 1, SIZE // 2, SIZE - 1])
def test_an_end_within_a_batch_is_an_error_and_no_wait(comes):
    with pair() as (here, there):
        sent(there, bytes(comes), [65_536])
        with pytest.raises(OSError, match="the connection has ended"):
            wire.receive_into(here, [memoryview(bytearray(SIZE))])


@pytest.mark.parametrize("wakes", [True, False], ids=["a kernel that wakes", "one that never does"])
def test_a_batch_that_stops_for_a_while_goes_on(monkeypatch, wakes):
    """The receiver sleeps until enough bytes have come, or for `_LONGEST_SLEEP`. The sender pauses for longer."""
    monkeypatch.setattr(wire, "_LONGEST_SLEEP", wire.struct.pack("ll", 0, 50_000))
    whole, into = bytes(range(256)) * (SIZE // 256), bytearray(SIZE)
    if not wakes:
        original = wire._wake_at
        monkeypatch.setattr(
            wire, "_wake_at", lambda connection, size: original(connection, size * 1000 if size > 1 else 1)
        )
    with pair() as (here, there):
        there.sendall(whole[:100_000])
        received = threading.Thread(target=wire.receive_into, args=(here, [memoryview(into)]))
        received.start()
        received.join(0.3)
        assert received.is_alive()
        there.sendall(whole[100_000:])
        received.join(WAIT_S)
        assert not received.is_alive() and into == whole
