"""The source dir as the archive that SageMaker unpacks to /opt/ml/code."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

from headrace.source import refuse_secrets, refuse_too_much, source_files


def pack_source(source_dir: Path, archive: Path) -> list[Path]:
    """Write `archive` (.tar.gz) with the source dir at its top; the files in it. Equal sources give equal bytes.

    Raises:
        InputError: it holds what looks like a secret, or too much.
    """
    files = source_files(source_dir)
    refuse_secrets(source_dir, files)
    refuse_too_much(source_dir, files)
    pack_files(source_dir, files, archive)
    return files


def pack_files(folder: Path, files: list[Path], archive: Path) -> None:
    """Write the named files of a folder as a .tar.gz, without times and owners."""
    with (
        open(archive, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", dereference=True) as tar,
    ):
        for file in files:
            info = tar.gettarinfo(folder / file, arcname=file.as_posix())
            # A second hard link would be stored as a reference to the first.
            info.type, info.size, info.mtime = tarfile.REGTYPE, (folder / file).stat().st_size, 0
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            with open(folder / file, "rb") as stream:
                tar.addfile(info, stream)
