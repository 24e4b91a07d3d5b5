"""The files that ranks leave when they raise: the first of a host's ranks is the root cause."""

from pathlib import Path

from headrace.rank_failure import first_failure, leave_failure


def test_the_rank_that_raised_first_is_found_with_its_traceback(tmp_path):
    for rank in (3, 1):
        leave_failure(tmp_path, rank, 1, f"ValueError: of rank {rank}", ["Traceback …", f"ValueError: of rank {rank}"])
    cause = first_failure(tmp_path, "algo-2")
    assert (cause.host, cause.process, cause.exit_code) == ("algo-2", "rank3", 1)
    assert cause.message == "raised ValueError: of rank 3"
    assert cause.log_tail == ("Traceback …", "ValueError: of rank 3")


def test_without_files_or_with_broken_ones_there_is_no_root_cause(tmp_path):
    assert first_failure(tmp_path / "none", "algo-1") is None
    for number, text in enumerate(("", "[]", '{"rank": "x"}', '{"rank": 1}')):
        (tmp_path / f"failed-rank{number}.json").write_text(text)
    assert first_failure(tmp_path, "algo-1") is None


def test_a_rank_without_a_launcher_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leave_failure(Path(), 0, 1, "ValueError", [])
    assert list(tmp_path.iterdir()) == []
