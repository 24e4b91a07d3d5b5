"""Upload two things that hosts look for in S3: Horovod's build recipe and the library for data transfer.

See `headrace.tensorflow.install_horovod` and `headrace.tensorflow.service.transfer.build`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headrace.backends.sagemaker.account import Account
from headrace.backends.sagemaker.pack import pack_files
from headrace.job.artifact_cache import LIBRARY_FOLDER, LIBRARY_KEY
from headrace.job.bundled import recipe_folder
from headrace.job.source import source_files

RECIPE_ARCHIVE = "recipe.tar.gz"


def upload_recipe(account: Account, output_s3_uri: str, name: str) -> None:
    """Upload a framework's build recipe to the folder `wheels`. Do nothing if headrace was installed without it."""
    recipe = recipe_folder(name)
    if not recipe.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        archive = Path(folder) / RECIPE_ARCHIVE
        pack_files({file: recipe / file for file in source_files(recipe)}, archive)
        account.upload(archive, f"{output_s3_uri.rstrip('/')}/wheels/{RECIPE_ARCHIVE}")


def upload_library(account: Account, output_s3_uri: str) -> None:
    """Upload the data transfer library if this machine has built it. Hosts with the same TensorFlow and libc use it."""
    folders = [Path(place) / LIBRARY_FOLDER for place in sys.path if place]
    libraries = [path for folder in folders for path in folder.glob("*.so")]
    if libraries:
        newest = max(libraries, key=lambda path: path.stat().st_mtime)
        account.upload(newest, f"{output_s3_uri.rstrip('/')}/wheels/{LIBRARY_KEY}/{newest.name}")
