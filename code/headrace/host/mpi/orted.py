"""Serve the `start_mpi_daemon` call: the leader's mpirun asks for this host's MPI daemon (orted).

A daemon runs every program that its mpirun asks for. So a host starts only one daemon, which may report only to the
leader. The host accepts the arguments that Open MPI 4.1 passes; the caller cannot choose a program or a folder.
"""

from __future__ import annotations

import re
import shlex
import socket
import sys
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
"""Parameters that tell a daemon its place in the job, each with the pattern of its values."""
_TUNING = re.compile(r"(btl|coll|hwloc|mpi|mtl|oob|opal|osc|pml|pmix|rmaps)(_(?!.*(path|dir|file|agent|command))\w+)?")
"""Matches names of communication parameters. Users may set them as `OMPI_MCA_…`; mpirun passes them to the daemon."""
_FOLDERS = ("orte_tmpdir_base", "btl_vader_backing_directory")
_AGENT = "plm_rsh_agent"
_LEADER = "orte_hnp_uri"
_TRANSPORT = re.compile(r"(?P<kind>tcp6?)://(?P<addresses>[^/;]+):(?P<port>\d+)")


def agent_command(work_dir: Path) -> str:
    """Return the command with which mpirun starts a daemon on another host: the script that `write_agent` writes.

    A script is needed because mpirun splits its command at spaces and colons, which Python's path may have.
    """
    return f"/bin/sh {work_dir / AGENT_FILE}"


def write_agent(work_dir: Path) -> None:
    """Write the shell script with which mpirun starts a daemon on another host (its `plm_rsh_agent`)."""
    (work_dir / AGENT_FILE).write_text(f'exec {shlex.quote(sys.executable)} -m {AGENT_MODULE} "$@"\n', encoding="utf-8")


class MpiDaemon:
    """Accepts one request to start this host's MPI daemon. Only the control channel's thread calls `ask`."""

    def __init__(self, leader_address: str, work_dir: Path, inbox: Inbox) -> None:
        self._leader_address, self._work_dir, self._inbox = leader_address, work_dir, inbox
        self._leader = addresses_of(leader_address)  # looked up early; calls look the name up only if this fails
        self._asked = False

    def ask(self, body: Body) -> Body:
        """Accept or refuse a request to start the daemon. If it is refused, the reply has an `error`."""
        leader = self._leader or addresses_of(self._leader_address)
        try:
            arguments = checked_arguments(body.get("arguments"), leader, self._work_dir)
        except InputError as error:
            return {"error": str(error)}
        if self._asked:
            return {"error": "the MPI daemon of this host has been started already"}
        self._asked = True
        self._inbox.put(MpiDaemonAsked(tuple(arguments)))
        return {}


def addresses_of(name: str) -> set[str]:
    """Return the addresses of a host's name; none if it cannot be resolved."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def checked_arguments(arguments: object, leader: set[str], work_dir: Path) -> list[str]:
    """Return orted's arguments, with this host's own programs and folders in place of the caller's.

    Parameters that the daemon does not need and that could do harm are removed, even if the user set them.

    Args:
        arguments: `-mca NAME VALUE`, any number of times.
        leader: the leader's IP addresses. The daemon may report to no other host.

    Raises:
        InputError: the arguments are malformed, or do not make the daemon report to the leader.
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
                raise InputError(f"the MPI daemon does not accept {name}={value[:100]!r}")
        elif not (_TUNING.fullmatch(name) and re.fullmatch(_WORDS, value)):
            continue
        checked += ["-mca", name, value]
    if not reports_to_leader:
        raise InputError(f"the MPI daemon's arguments lack {_LEADER}, the process to report to")
    return checked


def _within(uri: str, leader: set[str]) -> str:
    """Return a contact URI of Open MPI, `JOB.RANK;TRANSPORT://ADDRESSES:PORT;…`, with the leader's addresses only."""
    process, *transports = uri.split(";")
    kept = []
    for transport in transports:
        match = _TRANSPORT.fullmatch(transport)
        addresses = match["addresses"].split(",") if match else []
        known = [each for each in addresses if each.strip("[]") in leader]
        if match and known:
            kept.append(f"{match['kind']}://{','.join(known)}:{match['port']}")
    if not kept or not re.fullmatch(r"\d+\.\d+", process):
        raise InputError(f"the MPI daemon may report to the leader only, not to {uri[:200]!r}")
    return ";".join([process, *kept])
