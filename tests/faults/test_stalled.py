"""If a script without headrace's callbacks hangs, the job ends, and its message says what the ranks waited for."""

import pytest

from tests.support import finish, wait_for
from tests.victims import FIRST_STEP_S

HANGS = {
    "spin": (12, "rank1", "rank1 did not join an allreduce"),
    # Within 30 s, Horovod reports that all ranks wait for each other. The job then ends before `stall_timeout_s`.
    "unequal": (50, "trainer", "they made unequal numbers of steps"),
}
"""For each hang: `stall_timeout_s`, the role that is named, and part of the message."""


@pytest.mark.parametrize("how", HANGS)
def test_a_rank_that_hangs_without_any_callback_is_named(victim, how):
    stall_s, role, message = HANGS[how]
    flags = [f"--hyperparameter=how={how}", f"--hyperparameter=stall_timeout_s={stall_s}", "--no-is_hetero"]
    job = victim(*flags, stepping=False, script="silent.py")
    wait_for(lambda: (job.folder / "algo-1.log").exists() and "hangs now" in job.text(), "the hang", FIRST_STEP_S)
    run = finish(job.process, job.folder)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert (cause["role"], message in cause["message"]) == (role, True), cause
    assert "Thread 0x" in run.log("algo-1"), "no stacks"


def test_a_training_in_a_thread_that_another_ranks_end_cuts_short_fails_the_job(victim):
    job = victim("--hyperparameter=how=thread", "--no-is_hetero", stepping=False, script="silent.py")
    run = finish(job.process, job.folder)
    assert run.code == 1
    assert "Horovod has been shut down" in run.log("algo-1")
