"""Out-of-memory kills are found in the kernel's counters. The message says how much memory was held, and what helps."""

import pytest
from headrace.host.usage.oom import KernelKills, explained, kernel_kills
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
    assert KernelKills(dict).just_now() == ""


EVENTS, OOM_CONTROL, MACHINE = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)


@pytest.mark.parametrize(
    ("files", "risen", "said"),
    [
        ([EVENTS, MACHINE], [EVENTS, MACHINE], "here"),
        ([EVENTS, MACHINE], [MACHINE], ""),  # the kill was in another container
        ([OOM_CONTROL, MACHINE], [MACHINE], "machine"),  # the kill may be in a cgroup below this one
        ([MACHINE], [MACHINE], "machine"),
        ([MACHINE], [], ""),
    ],
)
def test_what_the_counters_say_of_a_kill_just_now(files, risen, said):
    counters, now = dict.fromkeys(files, 5), [100.0]
    kills = KernelKills(lambda: dict(counters), lambda: now[0])
    assert kills.just_now() == ""
    counters |= dict.fromkeys(risen, 6)
    assert kills.just_now() == said


def test_a_kill_of_long_ago_explains_nothing():
    counters, now = {EVENTS: 0}, [100.0]
    kills = KernelKills(lambda: dict(counters), lambda: now[0])
    counters[EVENTS] = 1
    assert kills.just_now() == "here"
    now[0] += 60
    assert kills.just_now() == ""


def test_a_kill_for_want_of_memory_is_told_with_its_size_and_what_helps():
    memory = {"killed": "here", "resident_bytes": {"77": 5 << 30, "78": 1}}
    cause = explained(KILLED, memory)
    assert "killed by SIGKILL: the kernel ran out of memory (it held 5.0 GiB when last seen)" in cause.message
    assert "shuffle" in cause.message
    assert explained(cause, memory) == cause, "said twice"
    assert "out of memory, perhaps for this process" in explained(KILLED, {"killed": "machine"}).message


def test_other_ends_are_left_as_they_are():
    assert explained(KILLED, {}) == KILLED
    raised = RootCause("algo-2", "rank0", "raised ValueError", exit_code=1)
    assert explained(raised, {"killed": "here"}) == raised
