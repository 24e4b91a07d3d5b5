"""Choose the secret by which the hosts of a job authenticate each other, if the job was submitted without one."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import sys
from collections.abc import Mapping

from headrace.cluster.topology import Topology
from headrace.errors import InputError
from headrace.job.settings import PLACEHOLDER_SECRET, SECRET_VARIABLE, Settings


def with_secret(settings: Settings, topology: Topology, environ: Mapping[str, str], rank: object = None) -> Settings:
    """Return the settings with the secret by which the job's hosts authenticate each other.

    A job that was given no secret gets a random one if it has only one launcher, else one derived from its ARN.

    Args:
        rank: this launcher's rank, if SageMaker's toolkit starts a launcher for each rank; else None.

    Raises:
        InputError: the secret is --dry_run's placeholder, or a job of several launchers has no secret and no ARN.
    """
    if settings.secret == PLACEHOLDER_SECRET:
        raise InputError(f"{SECRET_VARIABLE} is the placeholder that --dry_run prints: set it to a random text")
    if settings.secret:
        return settings
    if len(topology.hosts) == 1 and rank is None:
        return dataclasses.replace(settings, secret=secrets.token_hex(32))
    arn = environ.get("TRAINING_JOB_ARN", "")
    if not arn:
        raise InputError(
            f"the job has no secret: neither {SECRET_VARIABLE} nor TRAINING_JOB_ARN is set. Submit with start_job.py, "
            f"or set {SECRET_VARIABLE} to a random text in the job's environment"
        )
    print(
        f"headrace: {SECRET_VARIABLE} is not set, so the hosts use a secret derived from the job's ARN, which others "
        "may know; submit with start_job.py for a random one",
        file=sys.stderr,
    )
    return dataclasses.replace(settings, secret=derived_secret(arn), secret_is_derived=True)


def derived_secret(job_arn: str) -> str:
    """Derive a secret from the job's ARN if no secret was given. Anyone who knows the ARN can compute the secret."""
    return hashlib.sha256(b"headrace:" + job_arn.encode()).hexdigest()
