"""Fetch the results of a job on SageMaker, such as its summary and figures, to a local folder."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from headrace.backends.sagemaker.account import Account, require_region
from headrace.cluster.run_files import RESULTS, SUMMARY
from headrace.errors import InputError, SetupError


def fetch_results(
    account: Account, output_s3_uri: str, job_name: str, output_dir: Path, say: Callable[[str], None]
) -> Path | None:
    """Fetch the leader's `RESULTS` files to `output_dir/JOB_NAME`. Return this folder; None if nothing was fetched."""
    uri = f"{output_s3_uri.rstrip('/')}/{job_name}/output/output.tar.gz"
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        archive, fetched = Path(temporary) / "output.tar.gz", Path(temporary) / "fetched"
        try:
            if not account.download(uri, archive):
                return None
            fetched.mkdir()
            with tarfile.open(archive) as tar:
                files = {PurePosixPath(member.name): member for member in tar if member.isfile()}
                # The script may write a summary.json too, in a folder of its own: headrace's is the topmost.
                summaries = [path for path in files if path.name == SUMMARY]
                top = min((path.parent for path in summaries), key=lambda path: len(path.parts), default=None)
                if top is None:
                    return None
                for path, member in files.items():
                    below = path.relative_to(top) if path.is_relative_to(top) else path
                    content = tar.extractfile(member) if below.parts[0] in RESULTS and ".." not in below.parts else None
                    if content:
                        (fetched / below).parent.mkdir(parents=True, exist_ok=True)
                        with (fetched / below).open("wb") as file:
                            shutil.copyfileobj(content, file)
            folder = output_dir / job_name
            shutil.copytree(fetched, folder, dirs_exist_ok=True)
            return folder
        except (OSError, EOFError, zlib.error, tarfile.TarError, SetupError) as error:
            say(f"cannot fetch the job's results from {uri}: {error}")
            return None


def fetch_job(job_name: str, region: str | None, output_dir: Path, say: Callable[[str], None]) -> Path:
    """Fetch the results of the ended job `job_name` to a local folder; return that folder.

    Raises:
        InputError: there is no such job, it still runs, or it has no results.
        SetupError: AWS refuses the call or cannot be reached.
    """
    try:
        account = Account(require_region(region, os.environ))
        description = account.describe_job(job_name)
    except InputError as error:
        raise InputError(f"{job_name} is not a local folder; cannot fetch the job: {error}") from error
    if description["TrainingJobStatus"] in ("InProgress", "Stopping"):
        raise InputError(f"{job_name} is still running; ask again when it has ended")
    folder = fetch_results(account, description["OutputDataConfig"]["S3OutputPath"], job_name, output_dir, say)
    if folder is None:
        raise InputError(f"{job_name} ({description['TrainingJobStatus']}) has no results of headrace; see its logs")
    return folder
