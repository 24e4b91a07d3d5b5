"""Pack the source dir into the archive that SageMaker unpacks to /opt/ml/code."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.job.bundled import REQUIREMENTS, own_folder
from headrace.job.requirements import host_constraints, refuse_clashes
from headrace.job.source import has_headrace, host_files, refuse_secrets, refuse_too_much, source_files


def pack_source(source_dir: Path, archive: Path, left_out: Collection[Path] = ()) -> list[Path]:
    """Pack the files that hosts get into `archive`, a .tar.gz; return their paths. Equal files give identical archives.

    Args:
        left_out: folders that hosts do not get.

    Raises:
        InputError: these files must not be sent; see `files_to_send`.
    """
    files = files_to_send(source_dir, left_out)
    pack_files(files, archive)
    return list(files)


def files_to_send(source_dir: Path, left_out: Collection[Path] = ()) -> dict[Path, Path | bytes]:
    """Return the files that hosts get, by their path in the source dir.

    Raises:
        InputError: the source dir holds a probable secret, too many bytes, or a file with a reserved name; or its
            requirements clash with headrace's.
    """
    theirs = source_files(source_dir, left_out)
    refuse_secrets(source_dir, theirs)
    refuse_too_much(source_dir, theirs)
    files = host_files(source_dir, left_out)
    if required := _text(files, REQUIREMENTS):
        own = source_dir if has_headrace(source_dir) else own_folder()
        refuse_clashes(required, host_constraints(own))
    return files


def _text(files: Mapping[Path, Path | bytes], name: str) -> str:
    """Return a file's text; empty if there is no such file."""
    content = files.get(Path(name), b"")
    return (content.read_bytes() if isinstance(content, Path) else content).decode(errors="replace")


def pack_files(files: Mapping[Path, Path | bytes], archive: Path) -> None:
    """Write a .tar.gz without timestamps or owners. `files` maps a path in the archive to a file or to its content."""
    with (
        open(archive, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", dereference=True) as tar,
    ):
        for place, content in files.items():
            info = tarfile.TarInfo(place.as_posix())
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            status = content.stat()
            info.size, info.mode = status.st_size, status.st_mode & 0o777
            with open(content, "rb") as stream:
                tar.addfile(info, stream)
