"""Kills for want of memory: found in the kernel's counters, told with what was held and what helps."""

import pytest
from headrace.host.memory import KernelKills, explained, kernel_kills
from headrace.outcome import RootCause

KILLED = RootCause("algo-2", "worker-6001", "was killed by SIGKILL", pid=77, signal="SIGKILL")


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/docker/ab\n", "sys/fs/cgroup/docker/ab/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/docker/ab\n", "sys/fs/cgroup/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n"),
        ("4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:cpu,memory:/x\n", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 2\n"),
        ("", "proc/vmstat", "pgfault 9\noom_kill 2\n"),
    ],
    ids=["cgroup v2", "cgroup v2 within a container", "cgroup v1", "cgroup v1 within a container", "machine"],
)
def test_kills_are_counted_where_this_kernel_counts_them(tmp_path, groups, file, text):
    write(tmp_path, "proc/self/cgroup", groups)
    write(tmp_path, file, text)
    assert list(kernel_kills(tmp_path).values()) == [2]


def test_a_machine_without_counters_has_no_kills(tmp_path):
    assert kernel_kills(tmp_path) == {}
    assert KernelKills(lambda: {}).count == 0


def test_only_kills_since_the_job_began_count():
    counters = {"vmstat": 5, "memory.events": 1}
    kills = KernelKills(lambda: dict(counters))
    assert kills.count == 0
    counters |= {"vmstat": 7, "memory.events": 2}
    assert kills.count == 2


def test_a_kill_for_want_of_memory_is_told_with_its_size_and_what_helps():
    cause = explained(KILLED, {"kills": 1, "resident_bytes": {"77": 5 << 30, "78": 1}})
    assert "killed by SIGKILL: the kernel ran out of memory (it held 5.0 GiB when last seen)" in cause.message
    assert "shuffle" in cause.message
    assert explained(cause, {"kills": 1}) == cause, "said twice"


def test_other_ends_are_left_as_they_are():
    assert explained(KILLED, {}) == KILLED
    raised = RootCause("algo-2", "rank0", "raised ValueError", exit_code=1)
    assert explained(raised, {"kills": 1}) == raised
