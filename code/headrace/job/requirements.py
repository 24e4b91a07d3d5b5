"""Build the requirements.txt that hosts install at the start: the user's lines, then headrace's."""

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
"""Start of a line in code/constraints.txt. Hosts get only the lines above it. Users may choose all other versions."""


def host_constraints(own: Path) -> str:
    """Return the part of constraints.txt that hosts get; empty if headrace's folder, `own`, has no such file."""
    file = own / CONSTRAINTS
    return file.read_text(encoding="utf-8").partition(NOT_FOR_HOSTS)[0] if file.is_file() else ""


def join_requirements(theirs: Path | bytes | None, own: Path) -> str:
    """Return the user's and headrace's requirements, without the user's line for headrace: hosts get headrace as files.

    Raises:
        InputError: the user's file is not UTF-8, or has hashes. pip then refuses headrace's lines, which have none.
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
    """Raise `InputError` if no version meets both a requirement and a constraint: pip would fail on hosts."""
    for asked in _parsed(requirements):
        told = [each for each in _parsed(constraints) if canonicalize_name(each.name) == canonicalize_name(asked.name)]
        if told and not any(_agree(asked.specifier, each.specifier) for each in told):
            raise InputError(
                f"--source_dir: {REQUIREMENTS} asks for {asked.name}{asked.specifier}, but headrace needs "
                f"{asked.name}{told[0].specifier} on hosts, and pip cannot install both; change or delete that line"
            )


def _parsed(text: str) -> Iterator[Requirement]:
    """Yield the requirements on packages; skip other lines, such as options and links."""
    for line in text.splitlines():
        try:
            yield Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue


def _agree(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Return whether some version meets both. Tries only the specifiers' own versions, and one just above each."""
    named = {each.version.removesuffix(".*") for each in (*one, *other)} or {"0"}
    near = [version for name in named for version in (name, f"{name}.1")]
    return any(one.contains(each, prereleases=True) and other.contains(each, prereleases=True) for each in near)
