"""The PyTorch notebook runs from top to bottom."""

from tests.notebooks.execution import execute


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    said = execute("pytorch.ipynb", tmp_path)
    assert "alone succeeded" in said and "helped succeeded" in said and "error" not in said
    assert "the loss of both:" in said and "start_job.py --" in said
