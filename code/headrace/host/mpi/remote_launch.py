"""mpirun's remote-launch agent: a program that asks a host's launcher over the control channel to start an MPI daemon.

mpirun runs `AGENT HOST COMMAND…` (see `orted.write_agent`); the command is a line of shell that ends
in `orted ARGUMENTS…`. The agent sends the arguments only: the host runs its own orted.
"""

from __future__ import annotations

import os
import shlex
import sys

from headrace.errors import InputError
from headrace.host.control.channel import ControlClient, ControlError, control_hosts
from headrace.job.settings import SECRET_VARIABLE

LAUNCH_TIMEOUT_S = 20.0


def orted_arguments(words: list[str]) -> list[str]:
    """Return orted's arguments in mpirun's command line.

    Raises:
        InputError: the command line does not start orted.
    """
    tokens = shlex.split(" ".join(words))
    for index, token in enumerate(tokens):
        if os.path.basename(token) == "orted":
            return tokens[index + 1 :]
    raise InputError(f"mpirun asked for something other than orted: {' '.join(words)}")


def main() -> int:
    try:
        address, arguments = sys.argv[1], orted_arguments(sys.argv[2:])
        # mpirun passes the host's address. If the address is a name, mpirun passes only the part before the first dot.
        hosts = control_hosts()
        known = {name: (where, name) for name, where in hosts.items()}
        known |= {where.rpartition(":")[0]: (where, name) for name, where in hosts.items()}
        with ControlClient(*known[address], os.environ[SECRET_VARIABLE]) as client:
            reply = client.call("start_mpi_daemon", {"arguments": arguments}, LAUNCH_TIMEOUT_S)
        if reply.get("error"):
            raise ControlError(str(reply["error"]))
    except (ControlError, InputError, LookupError, ValueError) as error:
        print(f"Cannot start the MPI daemon on {' '.join(sys.argv[1:2])}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
