"""Malformed messages of a hostile worker cause an error at once, and take no memory for data that never comes."""

import contextlib
import resource
import socket
import struct
import threading
import time

import pytest
import tensorflow as tf
from headrace.tensorflow.service.transfer import HANDSHAKE
from headrace.training.handshake import NONCE_BYTES, PROOF_BYTES

from tests.integration.service import SECRET
from tests.support import wait_for

HELLO_BYTES = len(HANDSHAKE.magic) + NONCE_BYTES


@contextlib.contextmanager
def worker_that_says(port, secret, message):
    """Act as a worker that has this secret, admits any client, and answers each request with `message`."""

    def answer(connection):
        nonce = bytes(NONCE_BYTES)
        connection.sendall(HANDSHAKE.magic + nonce)
        hello = connection.recv(HELLO_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
        rank = hello[len(HANDSHAKE.magic) : HELLO_BYTES]
        connection.sendall(HANDSHAKE.proof(secret, "worker", nonce, rank, f"127.0.0.1:{port}"))
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
    """Return a message that announces an element of one tensor. `content`: the tensor's TensorProto, if one is sent."""
    about = struct.pack("<iiQQ", dtype.as_datatype_enum, len(dimensions), size, content is not None)
    about += struct.pack(f"<{len(dimensions)}q", *dimensions)
    return struct.pack("<iBBxxqQ", 0, 0, 0, 0, len(about)) + about + (content or b"")


def incomplete_text(count, text=b"x"):
    """Return the message of a text tensor that announces `count` texts and holds one."""
    proto = tf.make_tensor_proto([text])
    proto.tensor_shape.dim[0].size = count
    content = proto.SerializeToString()
    return element(tf.string, [], len(content), content)


def variant(*tensors):
    """Return a message whose variant claims to be a tensor, but is invalid. TensorFlow's own code decodes variants."""
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
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "memory was taken for absent data"


def test_a_worker_that_does_not_hold_the_secret_gives_nobody_a_batch(stream):
    running, batches = stream
    running.kill_worker(0)
    (port,) = running.transfer_ports.values()
    got = []
    threading.Thread(target=lambda: got.extend(map(int, batches)), daemon=True).start()
    with worker_that_says(port, "another secret", element(tf.int64, [], 8) + b"\xff" * 8):  # -1
        time.sleep(2)  # meanwhile the reader asks this worker again and again
    before = len(got)
    running.workers[0] = running.start_worker(running.worker_ports[0])
    wait_for(lambda: len(got) > before + 100, "batches of the job's own worker")  # more batches than were in flight
    assert -1 not in got, "a batch came from a worker of another job"
