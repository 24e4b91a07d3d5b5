"""Receive files over the control channel: arrays that a rank sends and that workers on other hosts read.

A file has the same path on every host, in the host's working folder, and is named by its content. An authenticated
call announces the file and its SHA-256; raw messages with its content follow. A file that does not match is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from headrace.host.control.channel import Body

CHUNK_BYTES = 192 * 1024
"""Bytes of a file in one message; the control channel accepts messages up to 256 KiB."""
CHUNK_TIMEOUT_S = 30.0
SPARED_BYTES = 1 << 30
"""Bytes that must stay free on the disk. A file that would leave less is refused."""


class FileKeeper:
    """Receives files into one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, body: Body) -> Body:
        """Return whether this host has a complete copy of the file already."""
        path = Path(str(body.get("path")))
        return {"has": path.is_file() and path.stat().st_size == body.get("bytes")}

    async def keep(self, body: Body, chunks: AsyncIterator[bytes]) -> Body:
        """Receive a file; the reply has an `error` if that failed."""
        path, size, sha256 = Path(str(body.get("path"))), body.get("bytes"), str(body.get("sha256"))
        named_by_content = re.fullmatch("[0-9a-f]{64}", sha256) and path.name == f"{sha256}.bin"
        if path.parent != self._folder or not named_by_content or not isinstance(size, int) or size < 0:
            return {"error": f"{path} must be a file in {self._folder}, named after the SHA-256 of its content"}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if size > shutil.disk_usage(path.parent).free - SPARED_BYTES:
                return {"error": f"the disk of {path.parent} has too little space for {size} bytes"}
            return await self._write(path, size, sha256, chunks)
        except (OSError, asyncio.TimeoutError, StopAsyncIteration) as error:
            return {"error": f"{path}: {type(error).__name__}: {error}"}

    async def _write(self, path: Path, size: int, sha256: str, chunks: AsyncIterator[bytes]) -> Body:
        digest, left, partial = hashlib.sha256(), size, path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        try:
            with open(partial, "wb") as file:
                while left:
                    chunk = await asyncio.wait_for(chunks.__anext__(), CHUNK_TIMEOUT_S)
                    left -= len(chunk)
                    if left < 0:
                        return {"error": "more bytes came than were announced"}
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                return {"error": "the content does not match the announced SHA-256"}
            os.replace(partial, path)
            return {}
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield a file's content in pieces of `CHUNK_BYTES`."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
