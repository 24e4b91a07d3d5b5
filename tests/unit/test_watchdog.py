"""A trainer that makes no progress counts as hung, and the message names the cause."""

import os
import urllib.parse

from headrace.cluster.sagemaker import topology_from
from headrace.events import WAITS_FOR_ENDS, format_event
from headrace.host.leader.watchdog import StallWatchdog, diagnose
from headrace.host.mpi.output import RankLog


def ranks(lines=0):
    log = RankLog("algo-2", topology_from({"hosts": ["algo-2"], "current_host": "algo-2"}, "test").hosts, 4)
    for _ in range(lines):
        log.label("[1,0]<stdout>:a line")
    return log


def horovod_misses(log, *names):
    for line in (
        "[W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or "
        "broadcasted by subset of ranks and are waiting for remainder of ranks for more than 5 seconds. ",
        "Missing ranks:",
        *(f"{name}: [grad_0, grad_1 ...]" for name in names),
    ):
        log.label(f"[1,0]<stderr>:{line}")


def watchdog(tmp_path):
    return StallWatchdog(tmp_path, timeout_s=10, start_timeout_s=100, now=0)


def test_before_the_first_step_a_trainer_has_as_long_as_a_start_may_take(tmp_path):
    dog = watchdog(tmp_path)
    assert dog.stalled_s(99, ranks(lines=0)) is None
    assert dog.stalled_s(101, ranks(lines=0)) == 101


def test_output_is_progress_for_a_script_that_reports_none(tmp_path):
    dog = watchdog(tmp_path)
    assert dog.stalled_s(90, ranks(lines=5)) is None
    assert dog.stalled_s(180, ranks(lines=5)) is None
    assert dog.stalled_s(191, ranks(lines=5)) == 101


def test_once_steps_are_made_only_steps_count(tmp_path):
    dog = watchdog(tmp_path)
    (tmp_path / "rank0").touch()
    assert dog.stalled_s(5, ranks(lines=1)) is None
    assert dog.stalled_s(14, ranks(lines=99)) is None
    assert dog.stalled_s(16, ranks(lines=200)) == 11


def test_a_jump_of_the_wall_clock_is_neither_a_stall_nor_hides_one(tmp_path):
    dog = watchdog(tmp_path)
    progress = tmp_path / "rank0"
    progress.touch()
    dog.stalled_s(1, ranks(lines=0))
    os.utime(progress, (10, 10))  # as if a step was made after the clock had been set back by decades
    assert dog.stalled_s(9, ranks(lines=0)) is None
    assert dog.stalled_s(18, ranks(lines=0)) is None
    assert dog.stalled_s(20, ranks(lines=0)) == 11


def test_ranks_that_wait_for_each_other_are_given_up_as_soon_as_horovod_says_so(tmp_path):
    dog, log = StallWatchdog(tmp_path, timeout_s=600, start_timeout_s=600, now=0), ranks()
    (tmp_path / "rank0").touch()
    assert dog.stalled_s(1, log) is None
    horovod_misses(log, "1", "2")
    assert dog.stalled_s(70, log) is None, "gave up, but rank 0 and rank 3 may still come"
    horovod_misses(log, *"0123")
    (tmp_path / "moved-0").touch()
    assert dog.stalled_s(80, log) is None, "gave up, but a main thread moves"
    assert dog.stalled_s(91, log) == 90
    cause = diagnose("algo-2", f"90 s ({dog.limit_name})", log, {}, "data")
    assert cause.message.startswith(
        "no step was made for 90 s (Horovod reports every rank as missing from at least one collective)"
    )
    assert "in different collectives (others wait for rank0 in grad_0, others wait for rank1 in gr" in cause.message
    (tmp_path / "rank1").touch()
    assert dog.stalled_s(92, log) is None, "gave up, but a step was made"


def test_a_suspended_process_is_named_first():
    log = ranks()
    statuses = {"algo-1": {"suspended": ["dispatcher"]}, "algo-2": {"suspended": []}}
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, statuses, "data from the tf.data service")
    assert (cause.host, cause.process) == ("algo-1", "dispatcher")
    assert "waited for data" in cause.message


def test_ranks_that_horovod_misses_are_named():
    log = ranks()
    horovod_misses(log, "1", "3!")
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, {}, "data from the tf.data service")
    assert cause.process == "rank1"
    assert "rank1, rank3 did not join an allreduce" in cause.message


def test_of_pytorchs_ranks_the_one_that_does_not_wait_in_a_collective_is_named():
    log = ranks()
    for rank in (0, 1, 3):
        log.label(f"[1,{rank}]<stdout>:headrace event=waits_for_ranks rank={rank}")
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, {}, "each other")
    assert (cause.process, cause.message.partition(": ")[2]) == (
        "rank2",
        "rank2 did not join an allreduce, so the other ranks waited",
    )
    log.label("[1,2]<stdout>:headrace event=waits_for_ranks rank=2 at=train.py:57")
    message = diagnose("algo-2", "11 s", log, {}, "each other").message
    assert "different collectives (rank2 at train.py:57), so they made unequal numbers of steps" in message
    log.progressed()
    assert log.missing_in_allreduce() == []


def test_what_ranks_waited_for_before_another_rank_ended_is_forgotten():
    log = ranks()
    for rank in (0, 1, 3):
        log.label(f"[1,{rank}]<stdout>:headrace event=waits_for_ranks rank={rank}")
    log.label("[1,2]<stdout>:headrace event=rank_ended rank=2")
    assert log.ended_and_awaited() is None  # ranks 0, 1 and 3 may have waited for rank 2's last collective


def test_a_rank_that_has_ended_is_named_once_all_others_wait_for_it():
    log = ranks()
    log.label("[1,2]<stdout>:headrace event=rank_ended rank=2")
    for rank in (0, 1):
        log.label(f"[1,{rank}]<stdout>:headrace event=waits_for_ranks rank={rank}")
    log.label("[1,3]<stdout>:headrace event=waits_for_ranks rank=3")
    log.label("[1,3]<stdout>:headrace event=waits_for_ranks rank=3 over=1")
    assert log.ended_and_awaited() is None  # rank 3 may still come
    log.label("[1,3]<stdout>:headrace event=waits_for_ranks rank=3")
    cause = log.ended_and_awaited()
    assert (cause.process, cause.message.partition(":")[0]) == (
        "rank2",
        "its script has ended, and rank0 waits for it in a collective",
    )
    for rank in (0, 1, 3):
        log.label(f"[1,{rank}]<stdout>:headrace event=rank_ended rank={rank}")
    assert log.ended_and_awaited() is None


def test_ranks_that_have_all_ended_and_are_still_there_are_told_of():
    log = ranks()
    for rank in range(4):
        log.label(f"[1,{rank}]<stdout>:headrace event=rank_ended rank={rank}")
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, {}, "data from the feed servers")
    assert "the script has ended on all ranks, but their processes have not" in cause.message


def test_ranks_in_different_passes_over_a_stream_are_the_root_cause_with_the_rule():
    log = ranks()
    why = "rank 0 is in pass 3, rank 1 in pass 2: all ranks must iterate over the stream equally often"
    waits = format_event(WAITS_FOR_ENDS, stream="val", rank=0, batches=2, ranks="1", why=urllib.parse.quote(why))
    log.label(f"[1,0]<stdout>:{waits}")
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, {}, "data")
    assert cause.message.endswith(f"rank 0 waits until ranks 1 say if dataset 'val' has more data: {why}")


def test_a_wait_for_a_streams_end_without_a_known_reason_ends_with_advice():
    log = ranks()
    log.label(f"[1,0]<stdout>:{format_event(WAITS_FOR_ENDS, stream='val', rank=0, batches=2, ranks='1')}")
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", log, {}, "data")
    assert cause.message.endswith(
        "has more data; do all filtering, batching and random mixing of elements before data.distribute"
    )


def test_otherwise_the_trainer_waits_for_data():
    cause = diagnose("algo-2", "11 s (stall_timeout_s)", ranks(), {}, "data from the tf.data service")
    assert (cause.host, cause.process) == ("algo-2", "trainer")
    assert "data from the tf.data service" in cause.message


def test_data_are_no_cause_where_no_rank_has_a_dataset():
    statuses = {"algo-1": {"suspended": ["worker-0"]}}
    for cause in (diagnose("algo-2", "11 s", ranks(), {}, ""), diagnose("algo-2", "11 s", ranks(), statuses, "")):
        assert "waited for data" not in cause.message
    assert "the script itself hangs" in diagnose("algo-2", "11 s", ranks(), {}, "").message
