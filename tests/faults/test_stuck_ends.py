"""If MPI hangs when it ends, the job still ends, with the same outcome as without the hang."""

from pathlib import Path

import pytest

from tests.support import copy_source, run_job

IMPATIENT_LAUNCHER = """
from headrace.host.leader import decide
from headrace.host.main import entry_point
if __name__ == "__main__":
    decide.END_S = 5.0
    entry_point(__file__)
"""


@pytest.fixture
def run_stuck(tmp_path):
    source = copy_source(tmp_path / "source", Path(__file__).with_name("stuck.py"))
    (source / "launcher.py").write_text(IMPATIENT_LAUNCHER)

    def run(at):
        flags = [f"--source_dir={source}", "--training_script=stuck.py", f"--hyperparameter=at={at}"]
        return run_job(tmp_path, "--no-is_hetero", *flags)

    return run


def test_ranks_that_have_done_their_work_and_never_end_are_ended(run_stuck):
    run = run_stuck("end")
    assert run.code == 0, run.output[-3000:]
    assert "5 s after all ranks have ended their scripts, MPI still runs" in run.output


def test_a_failed_rank_is_the_root_cause_though_mpi_ends_nobody(run_stuck):
    run = run_stuck("abort")
    assert run.code == 1
    assert run.summary["root_cause"]["role"] == "rank1"
    assert "no good_reason at all" in run.summary["root_cause"]["message"]
