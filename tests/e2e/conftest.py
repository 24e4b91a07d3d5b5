"""Fixtures of the end-to-end tests: the digits, and a source dir with a further training script."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, copy_source

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_digits.py"), str(folder)], check=True)
    return folder


@pytest.fixture
def with_script(tmp_path):
    """Function that copies `code`, adds one of tests/e2e/scripts, and returns the flags of a job with it."""

    def flags(name):
        source = copy_source(tmp_path / "source", SCRIPTS / name)
        return [f"--source_dir={source}", f"--training_script={name}"]

    return flags
