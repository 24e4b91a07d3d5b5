"""The walk-through runs from top to bottom. Notebooks are stored with outputs, which contain no machine's paths."""

import nbformat
import pytest

from tests.notebooks.execution import FOLDER, execute, text_of
from tests.support import ROOT

NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def test_the_walkthrough_runs_from_top_to_bottom(tmp_path):
    said = execute("walkthrough.ipynb", tmp_path)
    assert "alone succeeded" in said and "helped succeeded" in said and "error" not in said
    assert "start_job.py --" in said and "on-demand prices" in said
    assert "not submitted; missing:" in said and "no dashboard; missing:" in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_with_its_outputs(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert len(text) < 200_000
    said = text_of(notebook)
    assert "alone succeeded" in said and "helped succeeded" in said
    assert "Traceback" not in said and "error" not in said
    assert not any(place in said for place in ("/home/", "/root/", "/tmp/", str(ROOT)))
