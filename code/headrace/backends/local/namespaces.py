"""Simulate hosts as namespaces, each with its own network, host name, mounts and ports; no root needed.

One process, the switch, owns a user namespace and a bridge. Each host process joins that user
namespace, makes its own network, mount and UTS namespaces, connects to the bridge, mounts
its folder on /opt/ml, and executes the launcher. When the processes end, nothing is left. The module's commands:

    switch
    enter PARENT_PID SWITCH_PID NAME ADDRESS FOLDER HOSTS_FILE -- COMMAND…
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import SetupError
from headrace.linux import syscalls
from headrace.linux.prctl import die_with_parent

BRIDGE = "headrace"
INTERFACE = "eth0"
MTU_BYTES = 9001
"""The MTU inside an AWS VPC."""
BASE_DIR = Path("/opt/ml")
START_TIMEOUT_S = 60.0
_RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from headrace.backends.local.namespaces import main; main()"
# Not `python -m`: it would need PYTHONPATH, which the job's processes would inherit.
_THIS_MODULE = [sys.executable, "-c", _RUN, str(Path(__file__).parents[3])]
ENTER_FAILED = 96
"""The exit code of a host process that failed to set up its namespaces."""


class Namespaces:
    """The simulated network of one job. Use as a context manager."""

    description = "in namespaces, each with its own network"

    def __init__(self, work_dir: Path, host_names: Sequence[str], job_name: str) -> None:
        self._work_dir = work_dir
        self.hosts_file = work_dir / "hosts"
        """The file that the hosts see as /etc/hosts."""
        self._job_name = job_name
        self.addresses = {name: f"10.77.{number // 250}.{number % 250 + 1}" for number, name in enumerate(host_names)}
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Namespaces:
        """Start the network switch between the hosts. Raises `SetupError` if this machine does not allow namespaces."""
        self._switch = subprocess.Popen(
            [*_THIS_MODULE, "switch"],
            env=os.environ | {"TRAINING_JOB_NAME": self._job_name},  # shows which job the process belongs to
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._await_switch()
            lines = [f"{address}\t{name}\n" for name, address in self.addresses.items()]
            self.hosts_file.write_text("127.0.0.1\tlocalhost\n" + "".join(lines), encoding="ascii")
            self._probe()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch:
            self._switch.kill()
            self._switch.wait()
        self.hosts_file.unlink(missing_ok=True)

    def base_dir(self, host: str) -> Path:
        """Return the folder that the host sees as /opt/ml."""
        return BASE_DIR

    def environ(self) -> dict[str, str]:
        """Return {}: hosts need no variables, since host names resolve and each host has its own ports."""
        return {}

    def command(self, host: str, folder: Path, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` as the first process of a host whose /opt/ml is `folder`."""
        return self._enter(host, self.addresses[host], folder, argv)

    def _enter(self, name: str, address: str, folder: Path, argv: Sequence[str]) -> list[str]:
        assert self._switch is not None
        return [
            *_THIS_MODULE,
            "enter",
            str(os.getpid()),
            str(self._switch.pid),
            name,
            address,
            str(folder),
            str(self.hosts_file),
            "--",
            *argv,
        ]

    def _await_switch(self) -> None:
        assert self._switch is not None and self._switch.stdout is not None and self._switch.stderr is not None
        readable, _, _ = select.select([self._switch.stdout], [], [], START_TIMEOUT_S)
        if not readable or self._switch.stdout.readline() != b"ready\n":
            self._switch.kill()
            reason = self._switch.stderr.read().decode(errors="replace").strip().splitlines()
            raise SetupError(reason[-1] if reason else f"no network could be set up within {START_TIMEOUT_S:g} s")

    def _probe(self) -> None:
        """Set up one host as a test, before the job starts. Raises `SetupError` if this machine does not allow it."""
        command = self._enter("probe", "10.77.255.1", self._work_dir, ["/bin/true"])
        try:
            result = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"no host could be set up within {START_TIMEOUT_S:g} s") from error
        if result.returncode:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            raise SetupError(lines[-1] if lines else f"exit code {result.returncode}")


def run_switch() -> None:
    """Make a user namespace with a bridge in it, and keep both until standard input ends."""
    die_with_parent()
    syscalls.become_root_of_new_user_namespace(syscalls.CLONE_NEWNET)
    from pyroute2 import IPRoute

    with IPRoute() as network:
        network.link("add", ifname=BRIDGE, kind="bridge")
        network.link("set", index=network.link_lookup(ifname=BRIDGE)[0], state="up")
    print("ready", flush=True)
    sys.stdin.read()


def enter(
    parent_pid: int, switch_pid: int, name: str, address: str, folder: Path, hosts_file: Path, argv: Sequence[str]
) -> None:
    """Set up a host's namespaces in this process, then execute `argv`."""
    switch_net = os.open(f"/proc/{switch_pid}/ns/net", os.O_RDONLY)
    switch_user = os.open(f"/proc/{switch_pid}/ns/user", os.O_RDONLY)
    syscalls.setns(switch_user, syscalls.CLONE_NEWUSER)
    syscalls.unshare(syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
    socket.sethostname(name)
    plug_in(switch_net, name, address)
    syscalls.mount("none", "/", "none", syscalls.MS_REC | syscalls.MS_PRIVATE)
    mount_base_dir(folder)
    syscalls.mount(str(hosts_file), "/etc/hosts", "none", syscalls.MS_BIND)
    os.close(switch_net)
    os.close(switch_user)
    os.chdir(folder)
    die_with_parent()  # requested again: joining the user namespace cancelled the first request
    if os.getppid() != parent_pid:
        sys.exit(ENTER_FAILED)  # the parent died before the call above
    os.execvp(argv[0], list(argv))


def plug_in(switch_net: int, name: str, address: str) -> None:
    """Connect this network namespace to the bridge in `switch_net` by a veth pair."""
    from pyroute2 import IPRoute

    own_net = os.open("/proc/self/ns/net", os.O_RDONLY)
    syscalls.setns(switch_net, syscalls.CLONE_NEWNET)
    with IPRoute() as network:
        peer = {"ifname": INTERFACE, "net_ns_fd": own_net, "mtu": MTU_BYTES}
        network.link("add", ifname=f"to-{name}"[:15], kind="veth", mtu=MTU_BYTES, peer=peer)
        bridge = network.link_lookup(ifname=BRIDGE)[0]
        network.link("set", index=network.link_lookup(ifname=f"to-{name}"[:15])[0], master=bridge, state="up")
    syscalls.setns(own_net, syscalls.CLONE_NEWNET)
    with IPRoute() as network:
        network.link("set", index=network.link_lookup(ifname="lo")[0], state="up")
        index = network.link_lookup(ifname=INTERFACE)[0]
        network.addr("add", index=index, address=address, prefixlen=16)
        network.link("set", index=index, state="up")
    os.close(own_net)


def mount_base_dir(folder: Path) -> None:
    """Mount `folder` on /opt/ml. Only root may write in /opt, so a missing /opt/ml is made in a tmpfs copy of /opt."""
    if not BASE_DIR.is_dir():
        opt = BASE_DIR.parent
        syscalls.mount(str(opt), str(opt), "none", syscalls.MS_BIND | syscalls.MS_REC)
        old = os.open(opt, os.O_RDONLY)
        syscalls.mount("tmpfs", str(opt), "tmpfs", 0)
        for entry in os.listdir(old):
            source, target = f"/proc/self/fd/{old}/{entry}", str(opt / entry)
            if os.path.islink(source):
                os.symlink(os.readlink(source), target)
                continue
            if os.path.isdir(source):
                os.mkdir(target)
            else:
                Path(target).touch()
            syscalls.mount(source, target, "none", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(old)
        BASE_DIR.mkdir()
    syscalls.mount(str(folder), str(BASE_DIR), "none", syscalls.MS_BIND)


def main() -> None:
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["switch"]:
            with contextlib.suppress(KeyboardInterrupt):
                run_switch()
        else:
            parent, switch, name, address, folder, hosts_file = arguments[1:7]
            enter(int(parent), int(switch), name, address, Path(folder), Path(hosts_file), arguments[8:])
    except Exception as error:
        print(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(ENTER_FAILED)
