"""Functions that break a running job on simulated hosts."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.support import process_of, processes_of

STEADY, SILENT, HUNGRY = (Path(__file__).with_name(f"{name}.py") for name in ("steady", "silent", "hungry"))
TOYS = Path(__file__).with_name("toys")
LOST_TRANSFER = Path(__file__).with_name("lost_transfer.py")
LAUNCHER = "code/launcher.py"
DISPATCHER, WORKER = r"train_data.py dispatcher", r"train_data.py worker"
FEED = r"headrace\.torch\.feed\.server"
RANK = r"^\S+ -m headrace.rank"
MPIRUN = r"mpirun|orterun"


def kill(job, host, words, signum=signal.SIGKILL):
    process_of(job.folder.name, host, words).send_signal(signum)
    return time.monotonic()


def kill_host(job, host):
    """Kill all processes of a host, the launcher first, so that it cannot restart any."""
    name = job.folder.name
    members = []
    for process in processes_of(name):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.environ().get("SM_CURRENT_HOST") == host:
                members.insert(0 if LAUNCHER in " ".join(process.cmdline()) else len(members), process)
    assert members, f"nothing runs on {host}"
    for process in members:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # it ended with its launcher
    return time.monotonic()


def in_namespace_of(pid, *command):
    """Run a command in the namespaces of process `pid`, and return its output."""
    enter = ["nsenter", "-t", str(pid), "-U", "-n", "-m", "--preserve-credentials"]
    return subprocess.run([*enter, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def slow_down(job, host, delay_s, loss):
    """Put a host behind a slow link that loses frames; return the process that simulates the link."""
    (switch,) = [each for each in psutil.Process(job.process.pid).children() if each.cmdline()[-1:] == ["switch"]]
    enter = ["nsenter", "-t", str(switch.pid), "-U", "-n", "--preserve-credentials"]
    script = str(Path(__file__).with_name("slow_link.py"))
    command = [*enter, sys.executable, script, host, str(delay_s), str(loss)]
    link = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert link.stdout.readline() == "ready\n"
    return link


def cut_off(job, host, seconds=None):
    """Take the host's network interface down, for some seconds or for ever, from inside its namespace."""
    code = f"""
import time
from pyroute2 import IPRoute
network = IPRoute()
link = network.link_lookup(ifname="eth0")[0]
network.link("set", index=link, state="down")
if {seconds}:
    time.sleep({seconds})
    network.link("set", index=link, state="up")
"""
    pid = process_of(job.folder.name, host, LAUNCHER).pid
    in_namespace_of(pid, sys.executable, "-c", code)
