"""What hosts build and keep for the next job: an S3 folder. What cannot be fetched is built, and kept if it can be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headrace.errors import SetupError

LIBRARY_FOLDER = "headrace_transfer"
"""Where the transfer's library lies, beside TensorFlow; its file's name tells for what it was built."""
LIBRARY_KEY = "transfer"
"""Where it lies in the store."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
ATTEMPTS = 2
"""A host without a way to S3 builds, instead of waiting minutes for it."""


class Store:
    """The folder `HEADRACE_WHEELS`, `s3://BUCKET/PREFIX`."""

    def __init__(self, uri: str) -> None:
        import boto3  # the image has it; a build from the source dir's own recipe does without
        from botocore.config import Config

        self._uri = uri.rstrip("/")
        self._bucket, _, self._prefix = self._uri.removeprefix("s3://").partition("/")
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": ATTEMPTS}
        )
        self._client: Any = boto3.client("s3", config=config)

    def fetch(self, name: str, path: Path) -> None:
        """Raises `SetupError` when it cannot be had."""
        partial = path.with_name(f"{path.name}.partial")
        try:
            self._client.download_file(self._bucket, f"{self._prefix}/{name}", str(partial))
            partial.rename(path)
        except Exception as error:  # whatever boto3 and the network come up with
            raise SetupError(f"cannot fetch {self._uri}/{name}: {error}") from error

    def find(self, folder: str, suffix: str) -> str | None:
        """The name of a file in a folder of the store; None when there is none, or no way to it."""
        try:
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/{folder}/")
            names = [each["Key"].removeprefix(f"{self._prefix}/") for each in listed.get("Contents", [])]
        except Exception as error:  # then it is built
            print(f"nothing from {self._uri}: {error}", file=sys.stderr)
            return None
        return next((name for name in names if name.endswith(suffix)), None)

    def keep(self, path: Path, name: str) -> None:
        """For the next job."""
        try:
            self._client.upload_file(str(path), self._bucket, f"{self._prefix}/{name}")
            print(f"kept {path.name} for the next job in {self._uri}", file=sys.stderr)
        except Exception as error:  # the next job builds it again
            print(f"cannot keep {path.name} in {self._uri}: {error}", file=sys.stderr)
