"""If the kernel kills a rank for lack of memory, the root cause says so. The test's cgroup can be made only by root."""

import contextlib
import re
from pathlib import Path

import pytest

from tests.support import finish


def test_a_rank_that_the_kernel_killed_for_want_of_memory_is_said_to_be_that(victim):
    job = victim("--no-is_hetero", stepping=False, script="hungry.py")
    try:
        run = finish(job.process, job.folder)
    finally:
        group = re.search(r"limited in (\S+)", job.text())
        if group:
            with contextlib.suppress(OSError):  # its process may still exist
                Path(group[1]).rmdir()
    if "no memory cgroup here" in job.text():
        pytest.skip("only root can make a memory cgroup")
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert (cause["role"], cause["signal"]) == ("rank1", "SIGKILL"), cause
    assert re.search(r"the kernel ran out of memory.*held \d\.\d GiB", cause["message"]), cause
    assert "smaller batches" in cause["message"]
