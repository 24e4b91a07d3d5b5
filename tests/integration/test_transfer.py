"""Batches arrive bit for bit over headrace's own protocol. If that is not built, gRPC is used. Nothing hangs."""

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from headrace.errors import InputError, SetupError
from headrace.tensorflow import data
from headrace.tensorflow.service import transfer
from headrace.tensorflow.service.transfer import build

from tests.integration.service import TRAIN_DATA, read, service
from tests.ports import free_port


def test_tensors_of_every_kind_arrive_as_they_were(use, servers):
    def of_every_kind(n):
        return {
            "pixels": tf.cast(tf.random.stateless_uniform([64, 224, 224, 3], [n, 1], 0, 256, tf.int32), tf.uint8),
            "floats": tf.random.stateless_normal([2000, 1001], [n, 2]),
            "half": tf.cast(tf.random.stateless_normal([7], [n, 3]), tf.bfloat16),
            "scalar": n,
            "none": tf.zeros([0, 5]),
            "truth": n > 3,
            "text": tf.strings.as_string(tf.range(n)),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.range(n), [n]),
            "sparse": tf.sparse.SparseTensor([[n, 0]], [1.0], [100, 2]),
        }

    dataset = tf.data.Dataset.range(6).map(of_every_kind)
    use(servers(1).address)
    for attempt in range(10):  # TensorFlow reads over gRPC if a connection takes more than a second
        before = transfer.batches_received(transfer.library_path())
        arrived = list(read(dataset, job_name=f"attempt {attempt}"))
        assert len(arrived) == 6
        if transfer.batches_received(transfer.library_path()) - before >= 6:
            break
    else:
        raise AssertionError("no attempt got all batches over headrace's own protocol")
    for made, got in zip(dataset, arrived, strict=True):
        for name in ("pixels", "floats", "half", "scalar", "none", "truth", "text"):
            assert got[name].dtype == made[name].dtype
            np.testing.assert_array_equal(got[name], made[name], err_msg=name)
        assert got["ragged"].to_list() == made["ragged"].to_list()
        np.testing.assert_array_equal(tf.sparse.to_dense(got["sparse"]), tf.sparse.to_dense(made["sparse"]))


def test_an_error_on_the_worker_reaches_the_reader_in_its_own_words(use, servers):
    dataset = tf.data.Dataset.range(3).map(lambda n: tf.debugging.check_numerics(1 / (n - 1), "not in this test"))
    use(servers(1).address)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in this test"):
        list(read(dataset))


def test_a_restarted_worker_is_found_again_on_its_old_port(stream):
    running, batches = stream
    running.kill_worker(0)
    running.workers[0] = running.start_worker(running.worker_ports[0])
    ended = threading.Event()

    def read_on():
        for _ in range(100):
            next(batches)
        ended.set()

    threading.Thread(target=read_on, daemon=True).start()
    assert ended.wait(60), "the reader does not find the worker again"


def test_for_another_tensorflow_it_is_neither_built_nor_used(monkeypatch, capfd):
    monkeypatch.setattr(transfer, "TENSORFLOW_VERSIONS", ("2.20.0",))
    assert build.main([]) == 1
    assert not transfer.load.__wrapped__()
    assert capfd.readouterr().err.count("own protocol needs TensorFlow 2.20.0, not 2.21.0") == 2


def test_where_it_is_not_built_batches_come_over_grpc(use, servers, monkeypatch):
    use(servers(1).address)
    monkeypatch.setattr(transfer, "load", lambda: False)
    dataset = tf.data.Dataset.range(5)
    assert [int(n) for n in data.distribute(dataset, sharding="off", exact=False, job_name="plain")] == list(range(5))
    with pytest.raises(InputError, match=r"headrace\.tensorflow\.service\.transfer\.build"):
        read(dataset, job_name="asked")


def test_a_worker_whose_port_is_taken_ends_and_says_which(tmp_path):
    with service(tmp_path / "work", 0) as running, socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        command = [
            sys.executable, str(TRAIN_DATA), "worker", f"--port={free_port()}", "--address=127.0.0.1:1",
            f"--dispatcher={running.address}", f"--transfer_address=127.0.0.1:{taken}",
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"is another program on port {taken}?" in ended.stderr


def test_who_first_asks_for_it_has_it_built_and_the_others_wait(tmp_path):
    compiler = tmp_path / "g++"  # a slow stand-in for g++: it copies the library that setup has compiled
    lent = transfer.library_path()
    compiler.write_text(f'#!/bin/sh\nsleep 2\nwhile [ "$1" != -o ]; do shift; done\ncp {lent} "$2"\n')
    compiler.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        "-m",
        "headrace.tensorflow.service.transfer.build",
        "--once",
        f"--library={tmp_path / 'new.so'}",
    ]
    builders = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [builder.communicate(timeout=300)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert (tmp_path / "new.so").is_file()
    assert "".join(said).count("compiling") == 1


def test_what_cannot_be_built_is_not_tried_again_by_each_worker(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as without_compiler:
        without_compiler.setenv("PATH", str(tmp_path))
        assert build.main(["--once", f"--library={tmp_path / 'new.so'}"]) == 1
    assert build.main(["--once", f"--library={tmp_path / 'new.so'}"]) == 1
    said = capfd.readouterr().err
    assert said.count("over gRPC, at half speed: g++ is not installed") == 2


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [
        ("echo no such thing >&2; exit 1", "does not compile"),
        ('while [ "$1" != -o ]; do shift; done; echo "int one;" | gcc -x c -shared - -o "$2"', "does not work with"),
    ],
    ids=["it does not compile", "it does not work"],
)
def test_a_library_that_fails_is_not_put_in_place(tmp_path, monkeypatch, compiler, problem):
    (tmp_path / "g++").write_text(f"#!/bin/sh\n{compiler}\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SetupError, match=problem):
        build.build(tmp_path / "new.so")
    assert not (tmp_path / "new.so").exists()
