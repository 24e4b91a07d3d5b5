"""Find headrace's files for hosts and for new projects: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "own"
"""The folder in the wheel for the files that are beside the package in a checkout (see pyproject.toml)."""
SCRIPTS = ("launcher.py", "train_data.py")
"""headrace's scripts on hosts, beside the training script and the package."""
REQUIREMENTS, CONSTRAINTS = "requirements.txt", "constraints.txt"
TRAINING_SCRIPTS = {"tensorflow": "train_dnn.py", "pytorch": "train_torch.py"}
"""The default training script by framework, which is also the template of a new project."""


def own_folder() -> Path:
    """Return the folder with the scripts, the requirements, the constraints and the templates."""
    return INSTALLED if INSTALLED.is_dir() else PACKAGE.parent


def horovod_recipe() -> Path:
    """Return the folder of Horovod's build recipe. It does not exist on hosts, which have only the source dir."""
    installed = INSTALLED / "third_party" / "horovod"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "third_party" / "horovod"
