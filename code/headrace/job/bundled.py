"""Find headrace's files for hosts and for new projects: beside the package in a checkout, else inside the package."""

from __future__ import annotations

from pathlib import Path

from headrace.frameworks import FRAMEWORKS

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "own"
"""Folder with scripts and recipes in the installed package (see pyproject.toml). A checkout has no such folder."""
SCRIPTS = ("launcher.py", "train_data.py")
"""headrace's scripts that hosts get in addition to the training script and the package."""
REQUIREMENTS, CONSTRAINTS = "requirements.txt", "constraints.txt"
TRAINING_SCRIPTS = {name: framework.training_script for name, framework in FRAMEWORKS.items()}


def own_folder() -> Path:
    """Return the folder with the scripts, the requirements, the constraints and the templates."""
    return INSTALLED if INSTALLED.is_dir() else PACKAGE.parent


def recipe_folder(recipe: str) -> Path:
    """Return the folder of a framework's build recipe. It does not exist on hosts, which have only the source dir."""
    installed = INSTALLED / recipe
    return installed if installed.is_dir() else PACKAGE.parents[1] / recipe
