"""Only clients with the job's secret can use a worker's port. Others get no element, cause no loss, delay nobody."""

import collections
import contextlib
import resource
import socket
import struct
import threading

import pytest
import tensorflow as tf
from headrace.tensorflow.service.transfer import HANDSHAKE
from headrace.training.handshake import NONCE_BYTES, PROOF_BYTES

from tests.integration.service import SECRET, read, received

HELLO_BYTES = len(HANDSHAKE.magic) + NONCE_BYTES
MANY = 2_000


def unauthenticated_word(name, address):
    """Return the bytes that a client sends if it knows everything but the secret."""
    magic, nonce = HANDSHAKE.magic, bytes(NONCE_BYTES)
    if name == "replay":
        return overheard(address)
    wrong = HANDSHAKE.proof("wrong", "rank", nonce, nonce, f"{address[0]}:{address[1]}")
    return {
        "nothing": b"",
        "another protocol": b"GET / HTTP/1.1\r\n\r\n",
        "half a hello": magic[:5],
        "no proof": magic + nonce,
        "a wrong proof, and a request": magic + nonce + wrong + struct.pack("<I", 0),
        "the last protocol's hello, and a request": b"headrac1" + struct.pack("<I", 0),
    }[name]


def overheard(address):
    """Return a record of the bytes that a rank sent to a worker."""
    with socket.create_connection(address, 60) as connection:
        nonce = connection.recv(HELLO_BYTES, socket.MSG_WAITALL)[len(HANDSHAKE.magic) :]
        said = HANDSHAKE.magic + bytes(NONCE_BYTES)
        said += HANDSHAKE.proof(SECRET, "rank", nonce, bytes(NONCE_BYTES), f"{address[0]}:{address[1]}")
        connection.sendall(said)
        assert len(connection.recv(PROOF_BYTES, socket.MSG_WAITALL)) == PROOF_BYTES
    return said + struct.pack("<I", 0)


UNAUTHENTICATED = ("nothing", "another protocol", "half a hello", "no proof", "a wrong proof, and a request",
             "the last protocol's hello, and a request", "replay")  # fmt: skip


@pytest.mark.parametrize("name", UNAUTHENTICATED)
def test_unauthenticated_get_no_element_and_cost_none(servers, use, name):
    running = servers(1)
    use(running.address)
    batches = iter(read(tf.data.Dataset.range(300), sharding="dynamic", exact=True))
    got = [int(next(batches))]
    address = ("127.0.0.1", *running.transfer_ports.values())
    for _ in range(20):
        with socket.create_connection(address, 60) as client:
            with contextlib.suppress(OSError):  # refused before all was sent
                client.sendall(unauthenticated_word(name, address))
                client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda client=client: received(client), b""))
            assert len(answer) <= HELLO_BYTES, "more than a challenge"
    got += [int(n) for n in batches]
    assert sorted(got) == list(range(300)), "unauthenticated cost elements"


def assert_ranks_are_admitted(address):
    """Assert that ranks are admitted within the handshake's limit. Other work on the machine may delay a few."""
    admitted = 0
    for _ in range(21):
        with contextlib.suppress(OSError):  # not within the limit
            HANDSHAKE.enter(f"{address[0]}:{address[1]}", SECRET).close()
            admitted += 1
    assert admitted > 10


@pytest.fixture
def many_files():
    """Raise the limit of open files, which is 1,024 for ordinary users unless a process asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * MANY + soft), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_clients_who_keep_connecting_delay_nobody(stream):
    running, batches = stream
    address = ("127.0.0.1", *running.transfer_ports.values())
    ended = threading.Event()

    def connect():
        held = collections.deque(maxlen=500)
        while not ended.wait(0.0005):  # still thousands of connections a second; a worker holds 64 of them
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(address, 5, source_address=("127.0.0.2", 0)))

    unauthenticated = [threading.Thread(target=connect, daemon=True) for _ in range(2)]
    for client in unauthenticated:
        client.start()
    try:
        assert_ranks_are_admitted(address)
        for _ in range(200):
            next(batches)
    finally:
        ended.set()
        for client in unauthenticated:
            client.join()


@pytest.mark.usefixtures("many_files")
def test_two_thousand_idle_connections_delay_nobody_and_are_ended(stream):
    running, batches = stream
    address = ("127.0.0.1", *running.transfer_ports.values())
    idle = [socket.create_connection(address, 60) for _ in range(MANY)]
    try:
        assert_ranks_are_admitted(address)
        for _ in range(200):
            next(batches)
        for client in idle:
            client.settimeout(30)
            while received(client):
                pass
    finally:
        for client in idle:
            client.close()
    assert running.workers[0].poll() is None
