"""The recipe of the Horovod build, put where hosts whose image has no Horovod find it (see `headrace.host.install`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headrace.source import source_files
from headrace.submit.aws import Account
from headrace.submit.pack import pack_files

RECIPE = Path(__file__).resolve().parents[3] / "third_party" / "horovod"
RECIPE_ARCHIVE = "recipe.tar.gz"


def upload_recipe(account: Account, output_s3_uri: str) -> None:
    """Upload the recipe to the `wheels` folder; does nothing where headrace was installed without it."""
    if not RECIPE.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        archive = Path(folder) / RECIPE_ARCHIVE
        pack_files(RECIPE, source_files(RECIPE), archive)
        account.upload(archive, f"{output_s3_uri.rstrip('/')}/wheels/{RECIPE_ARCHIVE}")
