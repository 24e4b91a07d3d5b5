"""The setup names a missing tool in one line."""

import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT


def setup_in(tmp_path, path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("tools", "third_party", "code"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return subprocess.run(
        [sys.executable, str(tmp_path / "tools" / "setup.py")],
        env={"PATH": str(path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("missing", ["gcc", "g++", "make"])
def test_a_missing_tool_is_named(tmp_path, missing):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("gcc", "g++", "make"):
        if name != missing:
            (programs / name).symlink_to("/bin/true")
    result = setup_in(tmp_path, programs)
    assert result.returncode == 1
    assert result.stderr.startswith(f"setup: error: {missing} is not installed")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()
