"""A rank shows by files that it is alive, even after the disk has failed."""

import sys

import pytest
from headrace.rank import liveness, receipts
from headrace.training.signal_files import SignalFiles

from tests.support import wait_for


@pytest.fixture
def steps(monkeypatch):
    """List of a script's steps, which grows by one each time the steps are counted."""
    made = []
    monkeypatch.setattr(liveness, "_counters", [lambda: len(made.append(1) or made)])
    monkeypatch.setattr(liveness, "LOOK_EVERY_S", 0.01)
    return made


def test_a_disk_that_fails_for_a_moment_is_told_of_once_and_signs_of_life_go_on(tmp_path, monkeypatch, capfd, steps):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    folder = tmp_path / "signals"  # until this folder exists, the rank cannot write signs
    watch = liveness.Watch(folder, 3)
    wait_for(lambda: len(steps) > 5, "several looks")
    folder.mkdir()
    try:
        wait_for((folder / "rank3").exists, "a sign of life")
    finally:
        watch.stop()
        watch._thread.join()  # `stop` may return before the thread ends, and the next test replaces its functions
    assert capfd.readouterr().err.count("cannot write this rank's progress") == 1


def test_a_rank_without_progress_gives_no_strong_sign_while_the_disk_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "_counters", [lambda: 1])
    monkeypatch.setattr(liveness, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(receipts, "_sources", [lambda: {"a:7001": (1, 1)}])
    looks = []

    def full(self, force=False):
        looks.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(receipts.Receipts, "look", full)
    watch = liveness.Watch(tmp_path, 0)
    try:
        wait_for(lambda: looks, "the first look")
        (tmp_path / "rank0").unlink()
        seen = len(looks)
        wait_for(lambda: len(looks) > seen + 3, "further looks")
        assert not (tmp_path / "rank0").exists()
    finally:
        watch.stop()


def test_a_step_does_not_fail_where_its_sign_cannot_be_written(tmp_path):
    files = SignalFiles(tmp_path / "missing", lambda: 0)
    files.progress()
    files.ended()
