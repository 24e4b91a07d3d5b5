"""Pack the source dir into the archive that SageMaker unpacks to /opt/ml/code."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.job.source import host_files, refuse_secrets, refuse_too_much, source_files


def files_to_send(source_dir: Path, left_out: Collection[Path] = ()) -> dict[Path, Path | bytes]:
    """Return the files that hosts get, by their path in the source dir.

    Raises:
        InputError: the source dir holds a probable secret, too many bytes, or a file with a reserved name.
    """
    theirs = source_files(source_dir, left_out)
    refuse_secrets(source_dir, theirs)
    refuse_too_much(source_dir, theirs)
    return host_files(source_dir, left_out)


def pack_files(files: Mapping[Path, Path | bytes], archive: Path) -> None:
    """Write a .tar.gz without timestamps or owners: equal files give identical archives.

    `files` maps a path in the archive to a file or to its content.
    """
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
