"""Build the requirements.txt that hosts install at the start: the user's lines, then headrace's."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import InputError
from headrace.job.bundled import CONSTRAINTS, PACKAGE, REQUIREMENTS

NOT_FOR_HOSTS = "# Hosts do not need the rest"
"""The hosts' part of constraints.txt ends before this text. Users choose the versions of the packages that follow."""


def host_constraints(own: Path) -> str:
    """Return the part of constraints.txt that hosts get; empty if headrace's folder, `own`, has no such file."""
    file = own / CONSTRAINTS
    return file.read_text(encoding="utf-8").partition(NOT_FOR_HOSTS)[0] if file.is_file() else ""


def join_requirements(theirs: Path | bytes | None, own: Path) -> str:
    """Return the user's and headrace's requirements, without the user's line for headrace: hosts get headrace as files.

    Raises:
        InputError: the user's file is not UTF-8, or it has hashes. Hashes would make pip refuse headrace's lines.
    """
    ours = (own / REQUIREMENTS).read_text(encoding="utf-8").replace(CONSTRAINTS, f"{PACKAGE.name}/{CONSTRAINTS}")
    if theirs is None:
        return ours
    try:
        text = theirs.read_text(encoding="utf-8") if isinstance(theirs, Path) else theirs.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--source_dir: cannot read {REQUIREMENTS} ({error}); it must be UTF-8 text") from error
    if "--require-hashes" in text or "--hash" in text:
        raise InputError(
            f"--source_dir: {REQUIREMENTS} has hashes, so pip refuses lines that headrace adds; leave the hashes out"
        )
    kept = [line for line in text.splitlines() if not re.match(rf"\s*{PACKAGE.name}\b(?![-_.])", line)]
    return "\n".join([*kept, ours])
