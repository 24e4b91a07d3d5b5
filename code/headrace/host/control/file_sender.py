"""Send files to all hosts of the job; a rank runs this as a separate program.

Usage: `python -m headrace.host.control.file_sender FILE SHA256 [FILE SHA256 …]`

Each host gets the files that it lacks. A host that does not answer is retried until `startup_timeout_s`.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from pathlib import Path

from headrace.host.control.channel import ControlClient, ControlError, control_hosts
from headrace.host.control.file_receiver import chunks_of
from headrace.job.settings import SECRET_VARIABLE, STARTUP_TIMEOUT_VARIABLE

RETRY_S = 0.5
SEND_TIMEOUT_S = 600.0


def main() -> int:
    files = [(Path(path), sha256) for path, sha256 in zip(sys.argv[1::2], sys.argv[2::2], strict=True)]
    hosts = control_hosts()
    deadline = time.monotonic() + float(os.environ.get(STARTUP_TIMEOUT_VARIABLE) or 900)
    with concurrent.futures.ThreadPoolExecutor(max(len(hosts), 1)) as pool:
        failed = [error for error in pool.map(lambda host: _send(host, hosts[host], files, deadline), hosts) if error]
    for error in failed:
        print(error, file=sys.stderr, flush=True)
    return 1 if failed else 0


def _send(host: str, address: str, files: list[tuple[Path, str]], deadline: float) -> str:
    """Send a host the files that it lacks; return the reason of a failure, or an empty text."""
    with ControlClient(address, host, os.environ[SECRET_VARIABLE]) as client:
        while True:
            try:
                for path, sha256 in files:
                    body = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256}
                    if not client.call("has", body).get("has"):
                        error = client.call("keep", body, SEND_TIMEOUT_S, chunks_of(path)).get("error")
                        if error:
                            return f"{host} cannot store {path.name}: {error}"
                return ""
            except ControlError as error:
                if time.monotonic() > deadline:
                    return f"{host} did not answer, so {len(files)} files were not sent to it ({error})"
                time.sleep(RETRY_S)


if __name__ == "__main__":
    sys.exit(main())
