"""The secret that a job's hosts know each other by, where it was submitted without one."""

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
    """The settings with a secret: the job's, this launcher's own where it is alone, or the one that the ARN stands for.

    Args:
        rank: set where the toolkit starts a launcher for each rank.

    Raises:
        InputError: there is nothing that all hosts know.
    """
    if settings.secret == PLACEHOLDER_SECRET:
        raise InputError(f"{SECRET_VARIABLE} is what --dry_run prints in its place: make it a random text")
    if settings.secret:
        return settings
    if len(topology.hosts) == 1 and rank is None:
        return dataclasses.replace(settings, secret=secrets.token_hex(32))
    arn = environ.get("TRAINING_JOB_ARN", "")
    if not arn:
        raise InputError(
            f"neither {SECRET_VARIABLE} nor TRAINING_JOB_ARN is set, by which hosts would know each other: submit with "
            f"start_job.py, or set {SECRET_VARIABLE} to a random text in the job's environment"
        )
    print(
        f"headrace: no {SECRET_VARIABLE}: hosts know each other by one derived from the job's ARN, which is no secret; "
        "submit with start_job.py for a real one",
        file=sys.stderr,
    )
    return dataclasses.replace(settings, secret=derived_secret(arn), secret_is_derived=True)


def derived_secret(job_arn: str) -> str:
    """A stand-in for a job that was submitted without a secret. Anyone who knows the ARN can make it."""
    return hashlib.sha256(b"headrace:" + job_arn.encode()).hexdigest()
