"""Select the source dir's files to copy to the hosts. SageMaker and simulated hosts get the same files."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from headrace.errors import InputError
from headrace.job.bundled import CONSTRAINTS, INSTALLED, PACKAGE, REQUIREMENTS, SCRIPTS, own_folder
from headrace.job.requirements import host_constraints, join_requirements

ALWAYS_IGNORED = (
    "__pycache__/", "*.pyc", ".git/", ".*_cache/", ".venv/", "venv/", "*.egg-info/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
IGNORE_FILE = ".gitignore"
MAX_SOURCE_BYTES, MAX_SOURCE_FILES = 200 * 1024 * 1024, 50_000
_SECRET_NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    ".netrc", ".pypirc", ".npmrc", "credentials", "credentials.json", "*service_account*.json", "*.kdbx",
)  # fmt: skip
_SECRET_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|aws_secret_access_key\s*[=:]\s*['\"]?[\w/+]{40}"
)
_SCANNED_BYTES = 1024 * 1024


def source_files(source_dir: Path, left_out: Collection[Path] = ()) -> list[Path]:
    """Return the user's files that hosts get, relative to `source_dir`, sorted. .gitignore files in it are obeyed.

    Links are followed: hosts get their targets.

    Args:
        left_out: folders and files that hosts do not get. `source_dir` itself is never left out.

    Raises:
        InputError: a file or an ignore file cannot be read, or there are too many files.
    """
    not_these = frozenset(os.path.realpath(each) for each in left_out) - {os.path.realpath(source_dir)}
    try:
        walk = _walk(source_dir, Path(), [GitIgnoreSpec.from_lines(ALWAYS_IGNORED)], [Path()], not_these)
        files = list(itertools.islice(walk, MAX_SOURCE_FILES + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--source_dir {source_dir}: {error}") from error
    if len(files) > MAX_SOURCE_FILES:  # stopped here: listing a folder of images would take minutes
        folder, count = Counter(str(file.parent) for file in files).most_common(1)[0]
        raise InputError(
            f"--source_dir {source_dir} holds more than {MAX_SOURCE_FILES:,} files, {count:,} of them in {folder}; "
            f"move data to a --channel, and name files that hosts do not need in {IGNORE_FILE}"
        )
    return sorted(files)


def host_files(source_dir: Path, left_out: Collection[Path] = ()) -> dict[Path, Path | bytes]:
    """Return all files that hosts get, by path in their source dir: the user's files and headrace's own.

    If the source dir already contains headrace, as a checkout's folder `code` does, no files are added. Hosts get only
    those lines of constraints.txt that are meant for hosts.
    """
    files: dict[Path, Path | bytes] = {file: source_dir / file for file in source_files(source_dir, left_out)}
    if has_headrace(source_dir):
        told = {Path(CONSTRAINTS): host_constraints(source_dir).encode()}
        return files | {file: content for file, content in told.items() if file in files}
    own = own_folder()
    files |= {Path(name): own / name for name in SCRIPTS}
    files |= {Path(PACKAGE.name, file): PACKAGE / file for file in source_files(PACKAGE, [INSTALLED])}
    files[Path(PACKAGE.name, CONSTRAINTS)] = host_constraints(own).encode()
    theirs = files.get(Path(REQUIREMENTS)) if source_dir.resolve() != own else None
    files[Path(REQUIREMENTS)] = join_requirements(theirs, own).encode()
    return dict(sorted(files.items()))


def write_files(files: Mapping[Path, Path | bytes], folder: Path) -> None:
    """Write files into a folder. The keys of `files` are relative paths. A value is the content, or a file to copy."""
    for place, content in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (folder / place).write_bytes(content)
        else:
            shutil.copy2(content, folder / place)


def refuse_shadows(source_dir: Path, theirs: Collection[Path]) -> None:
    """Raise `InputError` if a user's file would replace a file of headrace."""
    if has_headrace(source_dir) or source_dir.resolve() == own_folder():
        return
    for name in (*SCRIPTS, PACKAGE.name):
        if any(file.parts[0] == name for file in theirs):
            raise InputError(
                f"--source_dir {source_dir} holds {name}, but headrace has a file of that name on the hosts: rename it"
            )


def has_headrace(source_dir: Path) -> bool:
    """Return whether a source dir contains the launcher and the headrace package."""
    return (source_dir / SCRIPTS[0]).is_file() and (source_dir / PACKAGE.name / "__init__.py").is_file()


def refuse_secrets(source_dir: Path, files: list[Path]) -> None:
    """Raise `InputError` if a file looks like a secret, which must not be uploaded."""
    for file in files:
        pattern = next((each for each in _SECRET_NAMES if fnmatch.fnmatch(file.name.lower(), each)), None)
        if pattern is None:
            with open(source_dir / file, "rb") as stream:
                found = _SECRET_TEXT.search(stream.read(_SCANNED_BYTES))
            if found is None:
                continue
        reason = f"its name looks like a secret's ({pattern})" if pattern else "it seems to hold a secret key"
        raise InputError(
            f"--source_dir holds {file}: {reason}, and it would be uploaded; "
            f"move it away, or name it in {source_dir / IGNORE_FILE}"
        )


def refuse_too_much(source_dir: Path, files: list[Path], limit_bytes: int = MAX_SOURCE_BYTES) -> None:
    """Raise `InputError` if the files together are too large for source code."""
    sizes = {file: (source_dir / file).stat().st_size for file in files}
    total = sum(sizes.values())
    if total > limit_bytes:
        largest = max(sizes, key=lambda file: sizes[file])
        raise InputError(
            f"--source_dir {source_dir} holds {total / 1e6:.0f} MB (limit {limit_bytes / 1e6:.0f} MB), {largest} alone "
            f"{sizes[largest] / 1e6:.0f} MB; move data to a --channel, and name files that hosts do not need in "
            f"{IGNORE_FILE}"
        )


def _walk(
    top: Path, folder: Path, specs: list[GitIgnoreSpec], bases: list[Path], above: frozenset[str]
) -> Iterator[Path]:
    real = os.path.realpath(top / folder)
    if real in above or (top / folder / "pyvenv.cfg").is_file():
        return  # a left-out folder, a link to a parent folder, or a virtual environment
    ignore_file = top / folder / IGNORE_FILE
    if ignore_file.is_file():
        specs, bases = [*specs, _spec(ignore_file.read_text().splitlines())], [*bases, folder]
    for entry in sorted(os.scandir(top / folder), key=lambda entry: entry.name):
        path = folder / entry.name
        is_folder = entry.is_dir()
        if _ignored(path, is_folder, specs, bases):
            continue
        if is_folder:
            yield from _walk(top, path, specs, bases, above | {real})
        elif entry.is_file() and os.path.realpath(entry.path) not in above:  # no dangling links, sockets or pipes
            yield path


def _spec(lines: list[str]) -> GitIgnoreSpec:
    """Return the patterns of a .gitignore; like git, skip malformed ones."""
    patterns: list[Any] = []
    for line in lines:
        with contextlib.suppress(ValueError, re.error):
            patterns += GitIgnoreSpec.from_lines([line]).patterns
    return GitIgnoreSpec(patterns)


def _ignored(path: Path, is_folder: bool, specs: list[GitIgnoreSpec], bases: list[Path]) -> bool:
    """Return whether git would ignore the path: the innermost ignore file with a matching pattern decides."""
    for spec, base in zip(reversed(specs), reversed(bases), strict=True):
        verdict = spec.check_file(str(path.relative_to(base)) + ("/" if is_folder else "")).include
        if verdict is not None:
            return bool(verdict)
    return False
