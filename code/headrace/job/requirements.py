"""What hosts install at the start: the user's requirements.txt with headrace's lines behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from headrace.errors import InputError
from headrace.job.bundled import CONSTRAINTS, PACKAGE, REQUIREMENTS

NOT_FOR_HOSTS = "# Hosts are not told of the rest"
"""What follows in code/constraints.txt is of no concern to hosts, where the user's own versions may stand."""


def host_constraints(own: Path) -> str:
    """The versions that must agree on hosts; empty where the folder has none."""
    file = own / CONSTRAINTS
    return file.read_text(encoding="utf-8").partition(NOT_FOR_HOSTS)[0] if file.is_file() else ""


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


def refuse_clashes(requirements: str, constraints: str) -> None:
    """Raises `InputError` for a line of which no version fits the constraints: pip would fail on every host."""
    for asked in _parsed(requirements):
        told = [each for each in _parsed(constraints) if canonicalize_name(each.name) == canonicalize_name(asked.name)]
        if told and not any(_agree(asked.specifier, each.specifier) for each in told):
            raise InputError(
                f"--source_dir: {REQUIREMENTS} asks for {asked.name}{asked.specifier}, and hosts run headrace with "
                f"{asked.name}{told[0].specifier}: pip would refuse both there; change that line, or leave it out"
            )


def _parsed(text: str) -> Iterator[Requirement]:
    """The lines that name a package and its versions; others, such as options and links, are pip's alone."""
    for line in text.splitlines():
        try:
            yield Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue


def _agree(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether some version is in both: if any is, then one that a side names, or one just above it."""
    named = {each.version.removesuffix(".*") for each in (*one, *other)} or {"0"}
    near = [version for name in named for version in (name, f"{name}.1")]
    return any(one.contains(each, prereleases=True) and other.contains(each, prereleases=True) for each in near)
