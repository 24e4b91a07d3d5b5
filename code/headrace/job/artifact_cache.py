"""What hosts build and keep for the next job: an S3 folder. What cannot be fetched is built, and kept if it can be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import SetupError
from headrace.job.settings import WHEELS_VARIABLE

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

    def __init__(self, uri: str, client: Any) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, _, self._prefix = self._uri.removeprefix("s3://").partition("/")
        self._client = client
        self._reached = True

    def fetch(self, name: str, path: Path) -> None:
        """Raises `SetupError` when it cannot be had."""
        partial = path.with_name(f"{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._bucket, f"{self._prefix}/{name}", str(partial))
            partial.rename(path)
        except Exception as error:  # whatever boto3 and the network come up with
            raise SetupError(f"cannot fetch {self._uri}/{name}: {error}") from error

    def fetch_kept(self, key: str, suffix: str, folder: Path) -> Path | None:
        """Downloads what an earlier job kept under this key with this suffix. None: the caller must build it."""
        try:
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/{key}/")
            names = [each["Key"].removeprefix(f"{self._prefix}/") for each in listed.get("Contents", [])]
            name = next((name for name in names if name.endswith(suffix)), "")
            if not name:
                return None
            path = folder / str(name).rpartition("/")[2]
            self.fetch(name, path)
        except Exception as error:  # whatever boto3 and the network come up with
            print(f"nothing from {self._uri}: {error}", file=sys.stderr)
            self._reached = False
            return None
        print(f"using what was built before: {self._uri}/{name}", file=sys.stderr)
        return path

    def keep(self, path: Path, name: str) -> None:
        """For the next job, where there is a way to the store."""
        if not self._reached:
            return
        try:
            self._client.upload_file(str(path), self._bucket, f"{self._prefix}/{name}")
            print(f"kept {path.name} for the next job in {self._uri}", file=sys.stderr)
        except Exception as error:  # the next job builds it again
            print(f"cannot keep {path.name} in {self._uri}: {error}", file=sys.stderr)


def open_store(environ: Mapping[str, str]) -> Store | None:
    """The job's store; None where it has none, or this machine lacks what reaches it."""
    uri = environ.get(WHEELS_VARIABLE)
    if not uri:
        return None
    try:
        import boto3  # SageMaker's images have it
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": ATTEMPTS}
        )
        return Store(uri, boto3.client("s3", config=config))
    except Exception as error:  # no boto3, no region, a profile that does not exist, …
        print(f"nothing from {uri}: {error}", file=sys.stderr)
        return None
