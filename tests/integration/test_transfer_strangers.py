"""Who may talk to a worker's transfer port, and what a hostile other end can do: nothing, to either side."""

import collections
import contextlib
import os
import resource
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf
from headrace.tensorflow.transfer import handshake

from tests.integration.service import SECRET, read, service
from tests.support import ROOT

HELLO_BYTES = len(handshake.MAGIC) + handshake.NONCE_BYTES
MANY = 2_000
DELAY_LIMIT_S = 1.0
"""How long a rank tries to get in."""


@contextlib.contextmanager
def worker_that_says(port, secret, message):
    """Whoever connects is let in as by a worker with this secret, and gets this message for each request."""

    def answer(connection):
        nonce = bytes(handshake.NONCE_BYTES)
        connection.sendall(handshake.MAGIC + nonce)
        hello = connection.recv(HELLO_BYTES + handshake.PROOF_BYTES, socket.MSG_WAITALL)
        rank = hello[len(handshake.MAGIC) : HELLO_BYTES]
        connection.sendall(handshake.proof(secret, "worker", nonce, rank, f"127.0.0.1:{port}"))
        while connection.recv(1000):
            connection.sendall(message)

    def accept(server):
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                answer(connection)

    with socket.create_server(("127.0.0.1", port)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)


def element(dtype, dimensions, size, content=None):
    """The message of an element with one tensor, announced so; `content` is one that does not lie as in memory."""
    about = struct.pack("<iiQQ", dtype.as_datatype_enum, len(dimensions), size, content is not None)
    about += struct.pack(f"<{len(dimensions)}q", *dimensions)
    return struct.pack("<iBBxxqQ", 0, 0, 0, 0, len(about)) + about + (content or b"")


def incomplete_text(count, text=b"x"):
    """The message of a text tensor that announces so many, and holds one."""
    proto = tf.make_tensor_proto([text])
    proto.tensor_shape.dim[0].size = count
    content = proto.SerializeToString()
    return element(tf.string, [], len(content), content)


def variant(*tensors):
    """The message of a variant that is to be a tensor, and is none; TensorFlow's decoder reads it all the same."""
    proto = tf.make_tensor_proto([0])
    proto.Clear()
    proto.dtype = tf.variant.as_datatype_enum
    proto.tensor_shape.dim.add(size=1)
    proto.variant_val.add(type_name="tensorflow::Tensor", tensors=tensors)
    content = proto.SerializeToString()
    return element(tf.variant, [1], len(content), content)


def incomplete_number():
    proto = tf.make_tensor_proto([0])
    proto.tensor_content = b"x"
    return proto


NONSENSE = {
    "a description of a TiB": struct.pack("<iBBxxqQ", 0, 0, 0, 0, 1 << 40),
    "a tensor of a TiB": element(tf.uint8, [1 << 40], 1 << 40),
    "a size that wraps to nothing": element(tf.int64, [1 << 61], 0),
    "dimensions that wrap": element(tf.uint8, [1 << 32, 1 << 32], 0),
    "a negative dimension": element(tf.uint8, [-1], 0),
    "too many dimensions": element(tf.uint8, [1] * 255, 1),
    "text of 2 GiB": element(tf.string, [1], 1 << 31, b""),
    "text of which most is missing": incomplete_text(1 << 33),
    "long text that would be repeated": incomplete_text(1 << 16, bytes(1 << 20)),
    "a tensor that is not there": variant(),
    "a tensor that cannot be made": variant(incomplete_number()),
    "a handle": element(tf.resource, [1], 0),
}


@pytest.mark.parametrize("message", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_answer_that_makes_no_sense_is_an_error_at_once_and_not_asked_for_again(stream, message):
    running, batches = stream
    running.kill_worker(0)
    (port,) = running.transfer_ports.values()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        worker_that_says(port, SECRET, message),
        pytest.raises(tf.errors.DataLossError, match="makes no sense"),
    ):
        for _ in range(1000):
            next(batches)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "KiB were taken for what never came"


def test_a_worker_that_does_not_hold_the_secret_gives_nobody_a_batch(stream, capfd):
    running, batches = stream
    running.kill_worker(0)
    (port,) = running.transfer_ports.values()
    read_until_lost(batches)
    taken = threading.Event()
    threading.Thread(target=lambda: (next(batches), taken.set()), daemon=True).start()
    with worker_that_says(port, "another secret", element(tf.int64, [], 8) + bytes(8)):
        assert not taken.wait(2), "a batch came from a worker of another job"
    running.workers[0] = running.start_worker(running.worker_ports[0])
    assert taken.wait(60), "the job's own worker is not found again"


def read_until_lost(batches):
    """Take what was on its way when the worker ended."""
    came = threading.Semaphore(0)

    def take():
        for _ in range(1000):
            next(batches)
            came.release()

    threading.Thread(target=take, daemon=True).start()
    while came.acquire(timeout=1):
        pass


def strangers_word(name, address):
    """What a stranger says, who knows all but the secret."""
    magic, nonce = handshake.MAGIC, bytes(handshake.NONCE_BYTES)
    if name == "replay":
        return overheard(address)
    wrong = handshake.proof("wrong", "rank", nonce, nonce, f"{address[0]}:{address[1]}")
    return {
        "nothing": b"",
        "another protocol": b"GET / HTTP/1.1\r\n\r\n",
        "half a hello": magic[:5],
        "no proof": magic + nonce,
        "a wrong proof, and a request": magic + nonce + wrong + struct.pack("<I", 0),
        "the last protocol's hello, and a request": b"headrac1" + struct.pack("<I", 0),
    }[name]


def overheard(address):
    """What a rank said to a worker, taken down."""
    with socket.create_connection(address, 5) as connection:
        nonce = connection.recv(HELLO_BYTES, socket.MSG_WAITALL)[len(handshake.MAGIC) :]
        said = handshake.MAGIC + bytes(handshake.NONCE_BYTES)
        said += handshake.proof(SECRET, "rank", nonce, bytes(handshake.NONCE_BYTES), f"{address[0]}:{address[1]}")
        connection.sendall(said)
        assert len(connection.recv(handshake.PROOF_BYTES, socket.MSG_WAITALL)) == handshake.PROOF_BYTES
    return said + struct.pack("<I", 0)


STRANGERS = ("nothing", "another protocol", "half a hello", "no proof", "a wrong proof, and a request",
             "the last protocol's hello, and a request", "replay")  # fmt: skip


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_get_no_element_and_cost_none(tmp_path, use, name):
    with service(tmp_path / "work", 1) as running:
        use(running.address)
        batches = iter(read(tf.data.Dataset.range(300), sharding="dynamic", exact=True))
        got = [int(next(batches))]
        address = ("127.0.0.1", *running.transfer_ports.values())
        for _ in range(20):
            with socket.create_connection(address, 5) as stranger:
                with contextlib.suppress(OSError):  # turned away before all was said
                    stranger.sendall(strangers_word(name, address))
                    stranger.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda stranger=stranger: received(stranger), b""))
                assert len(answer) <= HELLO_BYTES, "more than a challenge"
        got += [int(n) for n in batches]
        assert sorted(got) == list(range(300)), "strangers cost elements"


def received(connection):
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def usual_admission_s(address):
    """How long a rank takes to get in: the median of some, since this machine has other things to do."""
    took_s = []
    for _ in range(21):
        started = time.monotonic()
        handshake.enter(f"{address[0]}:{address[1]}", SECRET).close()
        took_s.append(time.monotonic() - started)
    return statistics.median(took_s)


def test_strangers_who_keep_connecting_delay_nobody(stream):
    running, batches = stream
    address = ("127.0.0.1", *running.transfer_ports.values())
    ended = threading.Event()

    def connect():
        held = collections.deque(maxlen=500)
        while not ended.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(address, 5, source_address=("127.0.0.2", 0)))

    strangers = [threading.Thread(target=connect, daemon=True) for _ in range(2)]
    for stranger in strangers:
        stranger.start()
    try:
        assert usual_admission_s(address) < DELAY_LIMIT_S
        for _ in range(200):
            next(batches)
    finally:
        ended.set()
        for stranger in strangers:
            stranger.join()


def test_two_thousand_idle_connections_delay_nobody_and_are_ended(stream):
    running, batches = stream
    address = ("127.0.0.1", *running.transfer_ports.values())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * MANY + soft), hard))
    idle = [socket.create_connection(address, 5) for _ in range(MANY)]
    try:
        assert usual_admission_s(address) < DELAY_LIMIT_S
        for _ in range(200):
            next(batches)
        for stranger in idle:
            stranger.settimeout(30)
            while received(stranger):
                pass
    finally:
        for stranger in idle:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert running.workers[0].poll() is None


def test_a_request_that_is_begun_and_not_ended_is_given_up(stream):
    running, _ = stream
    with handshake.enter(f"127.0.0.1:{running.transfer_ports[running.worker_ports[0]]}", SECRET) as admitted:
        admitted.sendall(b"\x10\x00")
        admitted.settimeout(30)
        assert received(admitted) == b"", "it waits for ever"


def test_a_consumer_is_let_in_although_it_waits_before_it_asks(stream):
    running, _ = stream
    with handshake.enter(f"127.0.0.1:{running.transfer_ports[running.worker_ports[0]]}", SECRET) as admitted:
        admitted.settimeout(6)
        with pytest.raises(TimeoutError):
            admitted.recv(1)


READER = """
import tensorflow as tf
from headrace.tensorflow import data
large = tf.data.Dataset.range(100).map(lambda n: (n, tf.zeros([64 << 20], tf.uint8)))
got = []
for n, _ in data.distribute(large, data_transfer_protocol="headrace"):
    got.append(int(n))
    if len(got) == 1:
        print("reading", flush=True)
print(len(set(got)), flush=True)
"""


@pytest.mark.parametrize(("stall_timeout_s", "loses"), [(1, True), (60, False)], ids=["longer than", "less than"])
def test_a_consumer_that_is_suspended_less_than_stall_timeout_s_loses_no_batch(tmp_path, stall_timeout_s, loses):
    """With a batch half read: its kernel answers for it, with a closed window."""
    environ = os.environ | {"HEADRACE_STALL_TIMEOUT_S": str(stall_timeout_s), "HEADRACE_TF_DATA_MODE": "service"}
    with service(tmp_path / "work", 1, environ) as running:
        (port,) = running.transfer_ports.values()
        reader = subprocess.Popen(
            [sys.executable, "-c", READER],
            env=environ | {"HEADRACE_DISPATCHER": running.address, "PYTHONPATH": str(ROOT / "code")},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert any("reading" in line for line in reader.stdout)
            suspend_within_a_batch(reader, port)
            time.sleep(8)  # several times the shorter timeout
            reader.send_signal(signal.SIGCONT)
            said, _ = reader.communicate(timeout=60)
        finally:
            reader.kill()
            reader.communicate()
    assert (int(said.split()[-1]) < 100) == loses


def suspend_within_a_batch(reader, port):
    """Stop it where the worker has more to say than the kernels between them take."""
    while reader.poll() is None:
        reader.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        if unsent_bytes(port) > 0:
            return
        reader.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("the reader was never within a batch")


def unsent_bytes(port):
    """What waits to be sent from a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].split(":")[0], 16) for row in rows if int(row[1].split(":")[1], 16) == port)
