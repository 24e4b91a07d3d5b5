"""A real dispatcher and workers, each a process, for tests and benchmarks of the data path."""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import uuid

from headrace.events import parse_event
from headrace.job.settings import SECRET_VARIABLE

from tests.ports import free_port
from tests.support import ROOT

REGISTERED_TIMEOUT_S = 60.0
TRAIN_DATA = ROOT / "code" / "train_data.py"
# Workers and readers need this variable. In a job, the launcher sets it.
SECRET = os.environ.setdefault(SECRET_VARIABLE, secrets.token_hex())


class Service:
    """A dispatcher and workers that can be killed and restarted."""

    def __init__(self, work_dir, workers, environ=None):
        self._environ = environ or os.environ
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (the servers write to it until `stop`)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.dispatcher = self._start("dispatcher", f"--port={self.port}", f"--work_dir={work_dir}")
        self.workers, self.worker_ports, self.transfer_ports = [], [], {}
        for _ in range(workers):
            self.add_worker()
        if workers:
            self.wait_for_workers()

    def add_worker(self, **environ):
        """Start one more worker, with additional environment variables."""
        self.worker_ports.append(free_port())
        self.workers.append(self.start_worker(self.worker_ports[-1], **environ))

    def wait_for_workers(self):
        deadline = threading.Timer(REGISTERED_TIMEOUT_S, self.dispatcher.kill)  # ends the output that is read below
        deadline.start()
        for line in self.dispatcher.stdout:
            event = parse_event(line)
            if event and event.name == "workers_registered" and int(event.fields["n"]) == len(self.workers):
                deadline.cancel()
                return
        ended = [worker.returncode for worker in self.workers if worker.poll() is not None]
        self._stderr.seek(0)
        raise AssertionError(
            f"{len(self.workers)} workers were not registered within {REGISTERED_TIMEOUT_S:g} s; "
            f"of them ended with: {ended or 'none'}; their standard error:\n{self._stderr.read().decode()}"
        )

    def kill_worker(self, number):
        self.workers[number].kill()
        self.workers[number].wait()

    def start_worker(self, port, **environ):
        return self._start(
            "worker",
            f"--port={port}",
            f"--address=127.0.0.1:{port}",
            f"--dispatcher={self.address}",
            f"--transfer_address=127.0.0.1:{self.transfer_ports.setdefault(port, free_port())}",
            **environ,
        )

    def _start(self, *arguments, **environ):
        environ = {**self._environ, **environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-u", str(TRAIN_DATA), *arguments]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=self._stderr, text=True)

    def stop(self):
        for process in [*self.workers, self.dispatcher]:
            process.kill()
        for process in [*self.workers, self.dispatcher]:
            process.communicate()
        self._stderr.close()


def received(connection):
    """Return the next bytes of a connection, or `b""` if the connection has ended or failed."""
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def read(dataset, **how):
    """Return a stream of a dataset. A worker makes the whole dataset, and sends it over headrace's own protocol."""
    from headrace.tensorflow import data

    how = {"sharding": "off", "data_transfer_protocol": "headrace", "exact": False} | how
    return data.distribute(dataset, **how)


def transferred(dataset):
    """Return an iterator over a stream of a dataset. One batch has been read, over headrace's own protocol.

    If a connection takes more than a second, as may happen on a busy machine, TensorFlow uses gRPC. This function then
    tries another stream. It tries up to ten streams.
    """
    from headrace.tensorflow.service import transfer

    for _ in range(10):
        before = transfer.batches_received(transfer.library_path())
        batches = iter(read(dataset, job_name=uuid.uuid4().hex))
        next(batches)
        if transfer.batches_received(transfer.library_path()) > before:
            return batches
    raise AssertionError("none of ten connections was made within a second")


class Ranks:
    """Several ranks of a job. This process plays one rank at a time. All ranks get the values that rank 0 sent."""

    def __init__(self, ranks):
        self.ranks, self.rank = ranks, 0
        self._rank_0, self._said = [], 0

    def of_all_ranks(self, value, *_):
        if self.rank == 0:
            self._rank_0.append(value)
        first = self._rank_0[self._said]
        self._said += 1
        return [first if rank == 0 else value for rank in range(self.ranks)]

    @contextlib.contextmanager
    def playing(self, rank):
        """Context in which this process plays the given rank."""
        from headrace.tensorflow.ranks import collectives
        from headrace.tensorflow.service import reader

        mine = {"size": lambda: self.ranks, "rank": lambda: rank, "of_all_ranks": self.of_all_ranks}
        before = {name: getattr(collectives, name) for name in mine}
        own_name, reader.own_name, self.rank, self._said = reader.own_name, str, rank, 0
        try:
            for name, value in mine.items():
                setattr(collectives, name, value)
            yield
        finally:
            reader.own_name = own_name
            for name, value in before.items():
                setattr(collectives, name, value)


def consumers(ranks, dataset, **how):
    """Return the streams that `data.distribute` gives to several ranks. By default, streams may differ in length."""
    from headrace.tensorflow import data

    of_ranks, streams = Ranks(ranks), []
    for rank in range(ranks):
        with of_ranks.playing(rank):
            streams.append(data.distribute(dataset, **{"uneven": "keep"} | how))
    return streams


@contextlib.contextmanager
def service(work_dir, workers, environ=None):
    running = Service(work_dir, workers, environ)
    try:
        yield running
    finally:
        running.stop()
