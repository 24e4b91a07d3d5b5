"""The architecture's rules, checked on the source: which way imports point, and what must not exist."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "code"
PACKAGE = CODE / "headrace"
ROOMS = ("host", "tensorflow", "torch", "submit", "local", "report")
FRAMEWORKS = {"tensorflow": "tensorflow", "keras": "tensorflow", "horovod": "tensorflow", "torch": "torch"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide which way they point"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_the_kernel_and_themselves_only(path):
    if path.name == "start.py":
        return  # The front door joins the rooms.
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "headrace" and len(parts) > 1 and parts[1] in ROOMS:
            assert parts[1] == room(path), f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_frameworks_are_imported_in_their_own_room_only(path):
    for name in imported(path):
        home = FRAMEWORKS.get(name.split(".")[0])
        assert home in (None, room(path)), f"{path} imports {name}"


def test_nothing_in_code_shadows_the_standard_library_or_switches_the_toolkit_to_package_mode():
    assert not (CODE / "__init__.py").exists()
    assert not (CODE / "setup.py").exists()


def test_entry_scripts_only_call_main():
    for path in (CODE / "launcher.py", CODE / "train_data.py", ROOT / "start_job.py"):
        assert len(path.read_text().splitlines()) < 20, path


def test_modules_have_a_docstring_and_stay_small():
    for path in modules():
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        assert len(text.splitlines()) <= 300, f"{path} has {len(text.splitlines())} lines"
