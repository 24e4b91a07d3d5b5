"""Functions that execute a notebook unchanged and collect what it prints."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.support import JOB_TIMEOUT_S, ROOT

FOLDER = ROOT / "notebooks"


def execute(name: str, cwd: Path) -> str:
    """Execute a notebook in `cwd`, and return what its cells print. An exception in a cell is raised here."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    patience = {"timeout": JOB_TIMEOUT_S, "iopub_timeout": JOB_TIMEOUT_S, "startup_timeout": JOB_TIMEOUT_S}
    NotebookClient(notebook, resources={"metadata": {"path": str(cwd)}}, **patience).execute()
    return text_of(notebook)


def text_of(notebook) -> str:
    """Return all that a notebook's cells printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)
