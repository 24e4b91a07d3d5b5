"""An S3 folder of files that hosts have built, for later jobs. If a download fails, the host builds the file itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import SetupError
from headrace.job.settings import WHEELS_VARIABLE

LIBRARY_FOLDER = "headrace_transfer"
"""Folder of the data transfer library, beside TensorFlow's. A file's name has the versions of TensorFlow and libc."""
LIBRARY_KEY = "transfer"
"""Subfolder for the data transfer library in the S3 folder."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
ATTEMPTS = 2
"""Number of attempts of an S3 call. With more, a host without S3 would wait for minutes before it builds the files."""


class Store:
    """The S3 folder that the variable `HEADRACE_WHEELS` names: `s3://BUCKET/PREFIX`."""

    def __init__(self, uri: str, client: Any) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, _, self._prefix = self._uri.removeprefix("s3://").partition("/")
        self._client = client
        self._reached = True

    def fetch(self, name: str, path: Path) -> None:
        """Download a file to `path`. Raises `SetupError` if that fails."""
        partial = path.with_name(f"{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._bucket, f"{self._prefix}/{name}", str(partial))
            partial.rename(path)
        except Exception as error:  # boto3 and the network raise many types
            raise SetupError(f"cannot fetch {self._uri}/{name}: {error}") from error

    def fetch_kept(self, key: str, suffix: str, folder: Path) -> Path | None:
        """Download an earlier job's file with this key and suffix; return None if the caller must build it."""
        try:
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/{key}/")
            names = [each["Key"].removeprefix(f"{self._prefix}/") for each in listed.get("Contents", [])]
            name = next((name for name in names if name.endswith(suffix)), "")
            if not name:
                return None
            path = folder / str(name).rpartition("/")[2]
            self.fetch(name, path)
        except Exception as error:  # boto3 and the network raise many types
            print(f"cannot fetch from {self._uri}, so this host builds the file: {error}", file=sys.stderr)
            self._reached = False
            return None
        print(f"using the build of an earlier job: {self._uri}/{name}", file=sys.stderr)
        return path

    def keep(self, path: Path, name: str) -> None:
        """Upload a file for later jobs. Does nothing after `fetch_kept` had an error: uploads would likely fail too."""
        if not self._reached:
            return
        try:
            self._client.upload_file(str(path), self._bucket, f"{self._prefix}/{name}")
            print(f"kept {path.name} in {self._uri} for the next job", file=sys.stderr)
        except Exception as error:  # the next job builds it again
            print(f"cannot keep {path.name} in {self._uri}, so the next job builds it again: {error}", file=sys.stderr)


def open_store(environ: Mapping[str, str]) -> Store | None:
    """Return the job's store; None if the job has none, or this machine cannot make an S3 client."""
    uri = environ.get(WHEELS_VARIABLE)
    if not uri:
        return None
    try:
        import boto3  # SageMaker's images contain boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": ATTEMPTS}
        )
        return Store(uri, boto3.client("s3", config=config))
    except Exception as error:  # no boto3, no region, a profile that does not exist, …
        print(f"cannot use {uri}, so nothing is fetched from it or kept in it: {error}", file=sys.stderr)
        return None
