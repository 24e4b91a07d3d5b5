"""Install Horovod in an image that lacks it: fetch the wheel that an earlier job built, or build one here.

The launcher of a dnn host runs this as a child process: `python -m headrace.tensorflow.install_horovod SOURCE_DIR`. The
build recipe is the folder `third_party/horovod` of the source dir. If it is missing, the recipe is fetched from the S3
folder that the variable `HEADRACE_WHEELS` names. The submission uploads the recipe there, and jobs keep wheels there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import SetupError
from headrace.frameworks.horovod import RECIPE, WHEELS_VARIABLE
from headrace.job.artifact_cache import Store, open_store

RECIPE_ARCHIVE = "recipe.tar.gz"


def main(source_dir: Path, environ: Mapping[str, str]) -> int:
    """Install Horovod; return 0 on success."""
    gpu = ["--gpu"] if int(environ.get("SM_NUM_GPUS") or 0) else []
    store = open_store(environ)
    with tempfile.TemporaryDirectory(prefix="headrace-install-") as folder:
        try:
            recipe = _find_recipe(source_dir, store, Path(folder))
            cache = Path(folder) / "cache"
            build = [sys.executable, str(recipe / "build.py"), f"--cache={cache}", *gpu]
            key = subprocess.run([*build, "--key"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            fetched = store is not None and store.fetch_kept(key, ".whl", cache / key) is not None
            subprocess.run(build, check=True)
            if store and not fetched:
                wheel = next((cache / key).glob("*.whl"))
                store.keep(wheel, f"{key}/{wheel.name}")
        except (SetupError, subprocess.CalledProcessError, OSError) as error:
            print(f"cannot install Horovod: {error}", file=sys.stderr)
            return 1
    return 0


def _find_recipe(source_dir: Path, store: Store | None, folder: Path) -> Path:
    recipe = source_dir / RECIPE
    if (recipe / "build.py").is_file():
        return recipe
    if store is None:
        raise SetupError(f"{recipe} is missing: add it, or set {WHEELS_VARIABLE} to an S3 folder that has the recipe")
    archive = folder / RECIPE_ARCHIVE
    store.fetch(RECIPE_ARCHIVE, archive)
    shutil.unpack_archive(archive, folder / "recipe")
    return folder / "recipe"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), os.environ))
