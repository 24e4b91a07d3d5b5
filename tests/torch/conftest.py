"""Fixtures: feed servers in this process, loaders that read from them, and whole jobs that tests break."""

import contextlib
import functools
import itertools

import pytest
import torch
from headrace.torch.dataloader import DataLoader
from headrace.torch.feed import client, server
from headrace.torch.feed.server import FeedServer
from headrace.training import handshake

from tests.ports import free_port
from tests.support import copy_source
from tests.torch.connected_ranks import in_ranks
from tests.torch.draws import plain
from tests.torch.fresh import forget_loaders
from tests.torch.jobs import SCRIPTS, TORCH
from tests.torch.script_runs import SECRET, Runs
from tests.victims import victims

torch.set_num_threads(1)  # several tests run at a time: torch's threads would wait for each other's processors


class Feeds:
    """Feed servers of one dataset, and loaders that read from them. A test sets a loader's rank and number of ranks."""

    def __init__(self, monkeypatch):
        self._monkeypatch, self._stack = monkeypatch, contextlib.ExitStack()
        self.servers = []
        for module in (handshake, client, server):  # other work on this machine may pause this process
            monkeypatch.setattr(module, "LIMIT_S", 60.0)

    def serve(self, processes, *arguments, port=0, stall_timeout_s=120.0, **options):
        """Start a server whose loader has these arguments; return its address."""
        loader, port = self.loader([], *arguments, **options), port or free_port()
        server = FeedServer(f"127.0.0.1:{port}", port, SECRET, processes, stall_timeout_s)
        server.start({loader.key: loader})
        self.servers.append(server)
        self._stack.callback(server.close)
        return f"127.0.0.1:{port}"

    def loader(self, addresses, *arguments, rank=0, world=1, stall_timeout_s=120.0, **options):
        """Return a rank's loader that reads from these addresses. Without addresses, the loader is in local mode."""
        forget_loaders()
        environ = {"RANK": str(rank), "WORLD_SIZE": str(world), "HEADRACE_JOB_SECRET": SECRET}
        environ |= {"HEADRACE_STALL_TIMEOUT_S": str(stall_timeout_s), "HEADRACE_FEEDS": ",".join(addresses)}
        environ |= {"HEADRACE_TF_DATA_MODE": "service" if addresses else "local"}
        for name, value in environ.items():
            self._monkeypatch.setenv(name, value)
        return DataLoader(*arguments, **options)

    def with_server(self, remote, *arguments, processes=1, **options):
        """If `remote`, start a server and return a loader that reads from it; else return a loader in local mode."""
        addresses = [self.serve(processes, *arguments, **options)] if remote else []
        return self.loader(addresses, *arguments, **options)

    def close(self):
        self._stack.close()


@pytest.fixture
def feeds(monkeypatch):
    made = Feeds(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def runs(tmp_path):
    """Runner of whole scripts as ranks and feed servers, each in a process of its own."""
    with contextlib.ExitStack() as stack:
        yield Runs(tmp_path, stack)


@pytest.fixture
def ranks(feeds, tmp_path):
    """Function that reads a loader in connected ranks. It returns the ranks' batches, and the ranks' last states."""

    def run(addresses, world, *arguments, state=None, most=None, **options):
        def read(rank):
            loader = feeds.loader(addresses, *arguments, rank=rank, world=world, **options)
            if state:
                loader.load_state_dict(state)
            batches = iter(loader)
            taken = [plain(batch) for batch in itertools.islice(batches, most)]
            reached = loader.state_dict()
            batches.close()
            if most:
                assert loader.state_dict() == reached  # a closed iterator's shards do not count as ended
            return taken, reached

        return map(list, zip(*in_ranks(read, tmp_path, world), strict=True))

    return run


@pytest.fixture
def source(tmp_path):
    return copy_source(tmp_path / "source", *SCRIPTS.glob("*.py"))


@pytest.fixture
def victim(tmp_path, source):
    """Function that starts a job of steady_torch.py, and returns once the job makes steps."""
    with victims(tmp_path) as begin:
        common = [TORCH, f"--source_dir={source}", "--training_script=steady_torch.py"]
        yield functools.partial(begin, *common)
