"""The `start_mpi_daemon` call: another host's mpirun asks for this host's MPI daemon.

A daemon runs whatever the mpirun that it reports to tells it. So there is one in a host's life, on hosts that train,
and it reports to the leader. Its arguments are those that Open MPI 4.1 gives; none names a program or a folder of the
caller's choice.
"""

from __future__ import annotations

import re
import shlex
import socket
import sys
import threading
from pathlib import Path

from headrace.errors import InputError
from headrace.host.control.channel import Body
from headrace.host.inbox import Inbox, MpiDaemonAsked

AGENT_MODULE, AGENT_FILE = "headrace.host.mpi.remote_launch", "mpi_agent"
_NUMBER, _WORDS = r"\d{1,20}", r"[\w.,:^+/-]{0,1000}"
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
_TUNING = re.compile(r"(btl|coll|hwloc|mpi|mtl|oob|opal|osc|pml|pmix|rmaps)(_(?!.*(path|dir|file|agent|command))\w+)?")
"""Parameters of the communication, which users may set too: mpirun hands on what is `OMPI_MCA_…` in its environment."""
_FOLDERS = ("orte_tmpdir_base", "btl_vader_backing_directory")
_AGENT = "plm_rsh_agent"
_LEADER = "orte_hnp_uri"
_TRANSPORT = re.compile(r"(?P<kind>tcp6?)://(?P<addresses>[^/;]+):(?P<port>\d+)")


def agent_command(work_dir: Path) -> str:
    """How mpirun reaches a host that it cannot start a process on: by what `write_agent` has written.

    mpirun takes spaces and colons for ends of words, and Python's own path may have some.
    """
    return f"/bin/sh {work_dir / AGENT_FILE}"


def write_agent(work_dir: Path) -> None:
    """The agent, as a shell script."""
    (work_dir / AGENT_FILE).write_text(f'exec {shlex.quote(sys.executable)} -m {AGENT_MODULE} "$@"\n', encoding="utf-8")


class MpiDaemon:
    """This host's MPI daemon: it may be asked for once. Thread-safe."""

    def __init__(self, leader_address: str, work_dir: Path, inbox: Inbox) -> None:
        self._leader_address, self._work_dir, self._inbox = leader_address, work_dir, inbox
        self._leader = addresses_of(leader_address)  # now, if it is known: a call must not wait for a name
        self._lock = threading.Lock()
        self._asked = False

    def ask(self, body: Body) -> Body:
        """Have the daemon started with these arguments; the reply has an `error` when that is refused."""
        leader = self._leader or addresses_of(self._leader_address)
        try:
            arguments = checked_arguments(body.get("arguments"), leader, self._work_dir)
        except InputError as error:
            return {"error": str(error)}
        with self._lock:
            if self._asked:
                return {"error": "the MPI daemon of this host has been started already"}
            self._asked = True
        self._inbox.put(MpiDaemonAsked(tuple(arguments)))
        return {}


def addresses_of(name: str) -> set[str]:
    """The addresses that a host's name stands for here."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def checked_arguments(arguments: object, leader: set[str], work_dir: Path) -> list[str]:
    """orted's arguments, with what names a program or a folder replaced by this host's own.

    Removes parameters that the daemon does not need and that could do harm. If a user set such a parameter, this host
    ignores it.

    Args:
        arguments: `-mca NAME VALUE`, again and again.
        leader: the addresses that the daemon may report to.

    Raises:
        InputError: they are not of this form, or would have it report to somebody else.
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
            value = agent_command(work_dir)
        elif name == _LEADER:
            value = _within(value, leader)
            reports_to_leader = True
        elif name in _FORMS:
            if not re.fullmatch(_FORMS[name], value):
                raise InputError(f"the MPI daemon takes no {name}={value[:100]!r}")
        elif not (_TUNING.fullmatch(name) and re.fullmatch(_WORDS, value)):
            continue
        checked += ["-mca", name, value]
    if not reports_to_leader:
        raise InputError("the MPI daemon is not told where to report to")
    return checked


def _within(uri: str, leader: set[str]) -> str:
    """Open MPI's `JOB.RANK;TRANSPORT://ADDRESSES:PORT;…` with those addresses alone that are the leader's."""
    process, *transports = uri.split(";")
    kept = []
    for transport in transports:
        match = _TRANSPORT.fullmatch(transport)
        addresses = match["addresses"].split(",") if match else []
        known = [each for each in addresses if each.strip("[]") in leader]
        if match and known:
            kept.append(f"{match['kind']}://{','.join(known)}:{match['port']}")
    if not kept or not re.fullmatch(r"\d+\.\d+", process):
        raise InputError(f"the MPI daemon is to report to {uri[:200]!r}, which is not the leader")
    return ";".join([process, *kept])
