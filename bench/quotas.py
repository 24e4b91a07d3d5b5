"""Limit a job's simulated hosts to a part of a processor with the kernel's CPU quotas (cgroup v1; needs root)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

CONTROLLER = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
"""The quotas' period in microseconds; short, so that a host that has used up its quota waits only milliseconds."""
POLL_S = 0.05


@contextlib.contextmanager
def quotas(job_name: str, cpus: Mapping[str, float]) -> Iterator[None]:
    """Limit a job's hosts until the context ends. `cpus` has each host's number of CPUs, which may be a fraction."""
    top = CONTROLLER / f"headrace-bench-{os.getpid()}"
    try:
        for host, share in cpus.items():
            (top / host).mkdir(parents=True)
            (top / host / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (top / host / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
    except OSError as error:
        raise SystemExit(f"bench: error: CPU quotas need root and {CONTROLLER}: {error}") from error
    done = threading.Event()
    mover = threading.Thread(target=_move, args=(job_name, top, set(cpus), done), daemon=True)
    mover.start()
    try:
        yield
    finally:
        done.set()
        mover.join()
        for host in cpus:
            (top / host).rmdir()
        if cpus:
            top.rmdir()


def _move(job_name: str, top: Path, hosts: set[str], done: threading.Event) -> None:
    """Put new processes of the job into their host's cgroup until `done` is set. Child processes inherit the cgroup."""
    seen: set[tuple[int, float]] = set()
    while not done.wait(POLL_S):
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                if key in seen:
                    continue
                environ = process.environ()
                seen.add(key)
                if environ.get("TRAINING_JOB_NAME") == job_name and environ.get("SM_CURRENT_HOST") in hosts:
                    (top / environ["SM_CURRENT_HOST"] / "cgroup.procs").write_text(str(process.pid))
