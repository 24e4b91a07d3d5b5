"""Readers and workers wait for each other within the job's time limits, but not for a process that hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf
from headrace.tensorflow.service.transfer import HANDSHAKE

from tests.integration.service import SECRET, consumers, read, received, service
from tests.support import ROOT, WAIT_S


def reading_ahead(stream):
    """Return an iterator that has yielded a local element, and whose thread already requests elements of the stream."""
    batches = iter(tf.data.Dataset.range(1).concatenate(stream).prefetch(2))
    next(batches)
    return batches


def test_a_reader_that_ends_while_it_waits_for_a_batch_ends_at_once(tmp_path, use):
    never = tf.data.Dataset.counter().filter(lambda n: n < 0)
    with service(tmp_path / "work", 1) as running:
        use(running.address)
        waiting = reading_ahead(read(never))
        time.sleep(1)  # meanwhile the reader sends its request, which this test cannot observe
        del waiting  # ends the reader; a hang exceeds the test's time limit


def test_a_reader_that_ends_while_a_worker_does_not_answer_ends_at_once(tmp_path, use):
    """TensorFlow holds a lock while it makes a connection, and ending the reader takes that lock."""
    with service(tmp_path / "work", 1) as running:
        use(running.address)
        first, second = consumers(2, tf.data.Dataset.range(10).repeat(), sharding="off", exact=False)
        batches = iter(first)
        next(batches)
        running.workers[0].send_signal(signal.SIGSTOP)  # its kernel goes on taking connections
        waiting = reading_ahead(second)
        time.sleep(0.5)  # meanwhile the second reader connects, which this test cannot observe
        del waiting
        running.workers[0].send_signal(signal.SIGCONT)


def test_a_request_that_is_begun_and_not_ended_is_given_up(stream):
    running, _ = stream
    with HANDSHAKE.enter(f"127.0.0.1:{running.transfer_ports[running.worker_ports[0]]}", SECRET) as admitted:
        admitted.sendall(b"\x10\x00")
        admitted.settimeout(30)
        assert received(admitted) == b"", "it waits for ever"


def test_a_consumer_is_let_in_although_it_waits_before_it_asks(stream):
    running, _ = stream
    with HANDSHAKE.enter(f"127.0.0.1:{running.transfer_ports[running.worker_ports[0]]}", SECRET) as admitted:
        admitted.settimeout(6)
        with pytest.raises(TimeoutError):
            admitted.recv(1)


READER = """
import tensorflow as tf
from headrace.tensorflow import data
large = tf.data.Dataset.range(40).map(lambda n: (n, tf.zeros([64 << 20], tf.uint8)))
got = []
for n, _ in data.distribute(large, data_transfer_protocol="headrace"):
    got.append(int(n))
    if len(got) == 1:
        print("reading", flush=True)
print(len(set(got)), flush=True)
"""


@pytest.mark.parametrize(("stall_timeout_s", "loses"), [(1, True), (60, False)], ids=["longer than", "less than"])
def test_a_consumer_that_is_suspended_less_than_stall_timeout_s_loses_no_batch(tmp_path, stall_timeout_s, loses):
    """The consumer has read half a batch. Its kernel still answers, with a closed TCP window."""
    environ = os.environ | {"HEADRACE_STALL_TIMEOUT_S": str(stall_timeout_s), "HEADRACE_TF_DATA_MODE": "service"}
    with service(tmp_path / "work", 1, environ) as running:
        (port,) = running.transfer_ports.values()
        for attempt in range(5):
            own = {"HEADRACE_DISPATCHER": running.address, "HEADRACE_JOB_NAME": f"reader {attempt}"}
            reader = subprocess.Popen(
                [sys.executable, "-c", READER],
                env=environ | own | {"PYTHONPATH": str(ROOT / "code")},
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert any("reading" in line for line in reader.stdout)
                if suspend_within_a_batch(reader, port):
                    time.sleep(8)  # several times the shorter timeout
                    reader.send_signal(signal.SIGCONT)
                    said, _ = reader.communicate(timeout=WAIT_S)
                    break
            finally:
                reader.kill()
                reader.communicate()
        else:
            raise AssertionError("all five readers ended before one could be suspended within a batch")
    assert (int(said.split()[-1]) < 40) == loses


def suspend_within_a_batch(reader, port):
    """Suspend the reader while the worker has more data to send than the kernels can buffer.

    Return False if the reader ends before the worker has so much data. A reader that uses gRPC always ends first.
    TensorFlow uses gRPC if a connection takes more than a second.
    """
    while reader.poll() is None:
        reader.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        if unsent_bytes(port) > 0:
            return True
        reader.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    return False


def unsent_bytes(port):
    """Return the number of bytes that wait to be sent from a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].split(":")[0], 16) for row in rows if int(row[1].split(":")[1], 16) == port)
