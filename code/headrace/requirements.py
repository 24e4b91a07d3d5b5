"""What hosts install at the start: the user's requirements.txt with headrace's lines behind it."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import InputError
from headrace.own_files import CONSTRAINTS, PACKAGE, REQUIREMENTS

NOT_FOR_HOSTS = "# Hosts are not told of the rest"
"""What follows in code/constraints.txt is of no concern to hosts, where the user's own versions may stand."""


def host_constraints(own: Path) -> str:
    """The versions that must agree on hosts."""
    return (own / CONSTRAINTS).read_text(encoding="utf-8").partition(NOT_FOR_HOSTS)[0]


def join_requirements(theirs: Path | bytes | None, own: Path) -> str:
    """Both as one file. A line that names headrace itself is left out: hosts get it as files.

    Raises:
        InputError: the user's file is not UTF-8, or has hashes, which headrace's lines have not.
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
            f"--source_dir: {REQUIREMENTS} has hashes, so pip would refuse headrace's own lines; leave the hashes out"
        )
    kept = [line for line in text.splitlines() if not re.match(rf"\s*{PACKAGE.name}\b(?![-_.])", line)]
    return "\n".join([*kept, ours])
