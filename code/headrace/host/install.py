"""Horovod for an image that lacks it: fetched as the wheel that an earlier job built, else built here.

Run as a child of the launcher, `python -m headrace.host.install SOURCE_DIR`, on dnn hosts only. The recipe is
`third_party/horovod` of the source dir, or what start_job.py put into the S3 folder `HEADRACE_WHEELS`; wheels
are kept there too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import SetupError
from headrace.settings import WHEELS_VARIABLE

RECIPE_FOLDER = Path("third_party") / "horovod"
RECIPE_ARCHIVE = "recipe.tar.gz"


def is_needed(source_dir: Path, environ: Mapping[str, str]) -> bool:
    """Whether Horovod is missing, and can be had."""
    has_recipe = (source_dir / RECIPE_FOLDER / "build.py").is_file() or bool(environ.get(WHEELS_VARIABLE))
    return has_recipe and find_spec("horovod") is None


def install_command(source_dir: Path) -> list[str]:
    """How the launcher starts this module."""
    return [sys.executable, "-u", "-m", "headrace.host.install", str(source_dir)]


def main(source_dir: Path, environ: Mapping[str, str]) -> int:
    """Install Horovod; 0 when it is there."""
    gpu = ["--gpu"] if int(environ.get("SM_NUM_GPUS") or 0) else []
    store = _Store(environ[WHEELS_VARIABLE]) if environ.get(WHEELS_VARIABLE) else None
    with tempfile.TemporaryDirectory(prefix="headrace-install-") as folder:
        try:
            recipe = _find_recipe(source_dir, store, Path(folder))
            cache = Path(folder) / "cache"
            build = [sys.executable, str(recipe / "build.py"), f"--cache={cache}", *gpu]
            key = subprocess.run([*build, "--key"], check=True, capture_output=True, text=True).stdout.strip()
            fetched = store is not None and store.fetch_wheel(key, cache / key)
            subprocess.run(build, check=True)
            if store and not fetched:
                store.keep_wheel(key, next((cache / key).glob("*.whl")))
        except (SetupError, subprocess.CalledProcessError, OSError) as error:
            print(f"cannot install Horovod: {error}", file=sys.stderr)
            return 1
    return 0


def _find_recipe(source_dir: Path, store: _Store | None, folder: Path) -> Path:
    recipe = source_dir / RECIPE_FOLDER
    if (recipe / "build.py").is_file():
        return recipe
    if store is None:
        raise SetupError(f"{recipe} is not there and {WHEELS_VARIABLE} is not set")
    archive = folder / RECIPE_ARCHIVE
    store.fetch(RECIPE_ARCHIVE, archive)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder / "recipe", filter="data")
        else:
            tar.extractall(folder / "recipe")
    return folder / "recipe"


class _Store:
    """The S3 folder of recipe and wheels. What cannot be fetched is built; what cannot be kept is built again."""

    def __init__(self, uri: str) -> None:
        import boto3  # the image has it; a build from the source dir's own recipe does without

        self._uri = uri.rstrip("/")
        self._bucket, _, self._prefix = self._uri.removeprefix("s3://").partition("/")
        self._client: Any = boto3.client("s3")

    def fetch(self, name: str, path: Path) -> None:
        """Raises `SetupError` when it cannot be had."""
        try:
            self._client.download_file(self._bucket, f"{self._prefix}/{name}", str(path))
        except Exception as error:  # whatever boto3 and the network come up with
            raise SetupError(f"cannot fetch {self._uri}/{name}: {error}") from error

    def fetch_wheel(self, key: str, folder: Path) -> bool:
        """Whether a wheel of this key was there; it is in `folder` then."""
        try:
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/{key}/")
            names = [each["Key"].rpartition("/")[2] for each in listed.get("Contents", [])]
            wheel = next((name for name in names if name.endswith(".whl")), None)
            if wheel is None:
                return False
            folder.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._bucket, f"{self._prefix}/{key}/{wheel}", str(folder / f"{wheel}.partial"))
            (folder / f"{wheel}.partial").rename(folder / wheel)
        except Exception as error:  # then it is built
            print(f"no wheel from {self._uri}: {error}", file=sys.stderr)
            return False
        print(f"using the wheel that an earlier job left in {self._uri}/{key}", file=sys.stderr)
        return True

    def keep_wheel(self, key: str, wheel: Path) -> None:
        try:
            self._client.upload_file(str(wheel), self._bucket, f"{self._prefix}/{key}/{wheel.name}")
            print(f"kept the wheel for the next job in {self._uri}/{key}", file=sys.stderr)
        except Exception as error:  # the next job builds it again
            print(f"cannot keep the wheel in {self._uri}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), os.environ))
