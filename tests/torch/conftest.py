"""Feed servers in this process, and loaders of a rank that reads from them; and whole jobs to break."""

import contextlib

import pytest
from headrace.torch import registry
from headrace.torch.feed_admission import FeedServer
from headrace.torch.loader import DataLoader

from tests.support import copy_source, start
from tests.torch.jobs import SCRIPTS, TORCH, Job
from tests.torch.ports import free_port

SECRET = "secret"


class Feeds:
    """Servers of one dataset, and loaders that read from them as any rank of any world."""

    def __init__(self, monkeypatch):
        self._monkeypatch, self._stack = monkeypatch, contextlib.ExitStack()
        self.servers = []

    def serve(self, processes, *arguments, port=0, stall_timeout_s=30.0, **options):
        """A server; its loader is made with these arguments. Returns its address."""
        self._monkeypatch.delenv("HEADRACE_FEEDS", raising=False)
        self._monkeypatch.delenv("HEADRACE_TF_DATA_MODE", raising=False)
        registry.Serving.made, registry.Serving.on, registry.Serving.begun = 0, True, False
        loader = DataLoader(*arguments, **options)
        registry.Serving.on = False
        port = port or free_port()
        server = FeedServer(f"127.0.0.1:{port}", port, SECRET, [loader], processes, stall_timeout_s)
        server.start()
        self.servers.append(server)
        self._stack.callback(server.close)
        return f"127.0.0.1:{port}"

    def loader(self, addresses, *arguments, rank=0, world=1, stall_timeout_s=30.0, **options):
        """A rank's loader; from no addresses, one of local mode."""
        registry.Serving.made = 0
        registry.Serving.begun = False
        registry._used.clear()
        registry._before_first_batch.clear()
        service = {"HEADRACE_FEEDS": ",".join(addresses), "HEADRACE_TF_DATA_MODE": "service"}
        environ = {"RANK": str(rank), "WORLD_SIZE": str(world), "HEADRACE_JOB_SECRET": SECRET}
        environ |= {"HEADRACE_STALL_TIMEOUT_S": str(stall_timeout_s)} | (service if addresses else {})
        for name, value in environ.items():
            self._monkeypatch.setenv(name, value)
        if not addresses:
            for name in service:
                self._monkeypatch.delenv(name, raising=False)
        return DataLoader(*arguments, **options)

    def close(self):
        self._stack.close()


@pytest.fixture
def feeds(monkeypatch):
    made = Feeds(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def source(tmp_path):
    return copy_source(tmp_path / "source", *SCRIPTS.glob("*.py"))


@pytest.fixture
def victim(tmp_path, source):
    """Starts the steady script and returns once it makes steps."""
    running = []

    def begin(*flags, stepping=True):
        common = [TORCH, f"--source_dir={source}", "--training_script=steady_torch.py", "--isolation=namespaces"]
        running.append(Job(*start(tmp_path, *common, *flags)))
        if stepping:
            running[-1].wait_for_steps()
        return running[-1]

    yield begin
    for job in running:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()
