"""Run a script as a job's ranks and feed servers. There is no launcher, since a launcher would take seconds."""

import contextlib
import os
import subprocess
import sys

from tests.ports import free_port
from tests.support import ROOT, wait_for_port

SECRET = "secret"


class Runs:
    """Processes of ranks and feed servers, which end with the test."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack

    def serve(self, script, *arguments):
        """Start a feed server, wait until it listens, and return its address."""
        process, port = self.start_server(script, *arguments)
        wait_for_port(port, process)
        return f"127.0.0.1:{port}"

    def start_server(self, script, *arguments):
        port = free_port()
        module = ["-m", "headrace.torch.feed.server", f"--port={port}", f"--address=127.0.0.1:{port}"]
        return self._start(f"server{port}", [*module, str(script), *arguments], HEADRACE_SERVER_NAME="worker"), port

    def train(self, script, *arguments, addresses=(), world=1):
        """Run all ranks to their end, and return the output of each. Fail if one fails."""
        common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        if addresses:
            common |= {"HEADRACE_FEEDS": ",".join(addresses), "HEADRACE_TF_DATA_MODE": "service"}
        ranks = [
            self._start(f"rank{rank}", [str(script), *arguments], RANK=str(rank), LOCAL_RANK=str(rank), **common)
            for rank in range(world)
        ]
        codes = [each.wait(120) for each in ranks]
        said = [self.said(f"rank{rank}") for rank in range(world)]
        assert codes == [0] * world, "\n".join(said)[-4000:]
        return said

    def said(self, name):
        return (self._folder / f"{name}.log").read_text()

    def _start(self, name, command, **environ):
        environ |= {
            "HEADRACE_JOB_SECRET": SECRET,
            "HEADRACE_STALL_TIMEOUT_S": "40",
            "TMPDIR": str(self._folder),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        output = self._stack.enter_context((self._folder / f"{name}.log").open("w"))
        path = f"{ROOT / 'code'}:{ROOT}"
        process = subprocess.Popen(
            [sys.executable, "-u", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=os.environ | environ | {"PYTHONPATH": path},
        )
        self._stack.callback(_end, process)
        return process


def _end(process):
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
