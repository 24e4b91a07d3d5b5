"""The `launch` call: another host's mpirun asks for this host's MPI daemon.

A daemon runs whatever the mpirun that it reports to tells it. So there is one in a host's life, on hosts that train,
and it reports to the leader: its arguments are those that Open MPI 4.1 gives, each of a form that names neither a
program nor a folder of the caller's choice.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.errors import InputError
from headrace.host.control import Body

AGENT_MODULE = "headrace.host.agent"
_NUMBER, _WORDS = r"\d{1,20}", r"[\w.,:^+-]{0,1000}"
_FORMS = {
    "ess": "env",
    "ess_base_jobid": _NUMBER,
    "ess_base_vpid": _NUMBER,
    "ess_base_num_procs": _NUMBER,
    "orte_node_regex": r"[\w.,:@()\[\]-]{1,100000}",
    "orte_leave_session_attached": _NUMBER,
    "orte_base_help_aggregate": _NUMBER,
    "orte_tag_output": _NUMBER,
    "plm": "rsh",
    "plm_rsh_no_tree_spawn": "1",
}
"""The values of parameters that tell a daemon its place."""
_TUNING = re.compile(r"(btl|coll|hwloc|mpi|mtl|oob|osc|pml|pmix|rmaps)(_(?!.*(path|dir|file|agent|command))\w+)?")
"""Parameters of the communication, which users may set too; words, which name nothing on a disk."""
_FOLDERS = ("orte_tmpdir_base", "btl_vader_backing_directory")
_AGENT = "plm_rsh_agent"
_LEADER = "orte_hnp_uri"
_URI = re.compile(r"\d+\.\d+;tcp6?://(?P<addresses>[^/;]+):\d+")


def agent_command() -> str:
    """How mpirun reaches a host that it cannot start a process on."""
    return f"{sys.executable} -m {AGENT_MODULE}"


class MpiDaemon:
    """This host's MPI daemon, until it is asked for. Thread-safe."""

    def __init__(self, leader_address: str, work_dir: Path, wake: Callable[[], None]) -> None:
        self._leader_address, self._work_dir, self._wake = leader_address, work_dir, wake
        self._lock = threading.Lock()
        self._asked = False
        self._arguments: list[str] | None = None

    def launch(self, body: Body) -> Body:
        """Have the daemon started with these arguments; the reply has an `error` when that is refused."""
        try:
            arguments = checked_arguments(body.get("arguments"), addresses_of(self._leader_address), self._work_dir)
        except InputError as error:
            return {"error": str(error)}
        with self._lock:
            if self._asked:
                return {"error": "the MPI daemon of this host has been started already"}
            self._asked, self._arguments = True, arguments
        self._wake()
        return {}

    def take(self) -> list[str] | None:
        """The arguments of a daemon to start now."""
        with self._lock:
            arguments, self._arguments = self._arguments, None
        return arguments


def addresses_of(name: str) -> set[str]:
    """The addresses that a host's name stands for. Raises `InputError`."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise InputError(f"the leader's name {name} has no address here ({error})") from error


def checked_arguments(arguments: object, leader: set[str], work_dir: Path) -> list[str]:
    """orted's arguments, with what names a program or a folder replaced by this host's own.

    Args:
        arguments: `-mca NAME VALUE`, again and again.
        leader: the addresses that the daemon may report to.

    Raises:
        InputError: something else is among them.
    """
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise InputError("arguments must be a list of strings")
    checked: list[str] = []
    reports_to_leader = False
    for place in range(0, len(arguments), 3):
        flag, name, value = [*arguments[place : place + 3], "", ""][:3]
        if flag not in ("-mca", "--mca"):
            raise InputError(f"the MPI daemon takes -mca NAME VALUE, not {flag[:100]!r}")
        if name in _FOLDERS:
            value = str(work_dir)
        elif name == _AGENT:
            value = agent_command()
        elif name == _LEADER:
            uri = _URI.fullmatch(value)
            given = {each.strip("[]") for each in uri["addresses"].split(",")} if uri else set()
            if not given or not given <= leader:
                raise InputError(f"the MPI daemon is to report to {value[:200]!r}, which is not the leader")
            reports_to_leader = True
        elif not _is_harmless(name, value):
            raise InputError(f"the MPI daemon takes no {name[:100]}={value[:100]!r}")
        checked += ["-mca", name, value]
    if not reports_to_leader:
        raise InputError("the MPI daemon is not told where to report to")
    return checked


def _is_harmless(name: str, value: str) -> bool:
    form = _FORMS.get(name) or (_WORDS if _TUNING.fullmatch(name) else None)
    return form is not None and re.fullmatch(form, value) is not None
