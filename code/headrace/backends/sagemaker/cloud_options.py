"""Options of the SageMaker backend: account, limits, network, and which program starts MPI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import InputError
from headrace.job.spec import DISTRIBUTIONS

INPUT_MODES = ("File", "FastFile")
MAX_VOLUME_GB = 16_384
MAX_RUN_LIMIT_S = 28 * 24 * 3600
"""SageMaker's longest training job, 28 days (StoppingCondition's documentation)."""
ROLE_ARN = re.compile(r"arn:aws[a-z\-]*:iam::(\d{12}):role/[\w+=,.@/\-]+")
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9](/[^/?#]+)*/?")
"""The pattern of an S3 location, without `//`, `?` and `#`, which the toolkit on the hosts would misread."""


@dataclass(frozen=True)
class CloudOptions:
    """Where and under which limits a job runs on SageMaker, validated when made. Times are in seconds."""

    role_arn: str
    region: str
    image_uri: str
    output_s3_uri: str
    """The S3 folder for source, model and results; each job has a subfolder of its name."""
    max_run_s: int = 24 * 3600
    volume_size_gb: int = 50
    spot: bool = False
    max_wait_s: int | None = None
    """With spot, the limit on waiting for capacity plus running; default: an hour more than `max_run_s`."""
    checkpoint_s3_uri: str = ""
    """The S3 folder that /opt/ml/checkpoints is copied to and restored from; default: in the job's own folder."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    encrypt_inter_container_traffic: bool | None = None
    """Whether to encrypt traffic between hosts; None: if the job has more than one host."""
    enable_network_isolation: bool = False
    distribution: str = "launcher"
    input_mode: str = "File"
    sharded_channels: tuple[str, ...] = ()
    """Channels whose objects are split between the hosts that see them; the others are copied to each."""
    keep_alive_period_s: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not ROLE_ARN.fullmatch(self.role_arn):
            raise InputError(f"--role {self.role_arn!r} is no role ARN; expected arn:aws:iam::ACCOUNT:role/NAME")
        if not 1 <= self.max_run_s <= MAX_RUN_LIMIT_S:
            raise InputError(f"--max_run is {self.max_run_s}; expected 1 to {MAX_RUN_LIMIT_S} seconds (28 days)")
        if not 1 <= self.volume_size_gb <= MAX_VOLUME_GB:
            raise InputError(f"--volume_size is {self.volume_size_gb}; expected 1 to {MAX_VOLUME_GB} GB")
        if self.max_wait_s is not None and not self.spot:
            raise InputError("--max_wait is for managed spot training; add --spot, or leave it out")
        if self.keep_alive_period_s and self.spot:
            raise InputError("SageMaker has no warm pools for spot hosts; leave out --keep_alive_period or --spot")
        if self.max_wait_s is not None and self.max_wait_s < self.max_run_s:
            raise InputError(
                f"--max_wait {self.max_wait_s} is shorter than --max_run {self.max_run_s}, which it includes"
            )
        if bool(self.subnets) != bool(self.security_group_ids):
            raise InputError("a VPC needs both --subnets and --security_group_ids; give both or neither")
        for flag, uri in (("--output_s3_uri", self.output_s3_uri), ("--checkpoint_s3_uri", self.checkpoint_s3_uri)):
            if uri and not _S3_URI.fullmatch(uri):
                raise InputError(f"{flag} {uri!r} is no S3 location; expected s3://BUCKET/PREFIX")
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(f"--distribution is {self.distribution!r}; expected one of {', '.join(DISTRIBUTIONS)}")
        if self.input_mode not in INPUT_MODES:
            raise InputError(f"--input_mode is {self.input_mode!r}; expected one of {', '.join(INPUT_MODES)}")
        if self.keep_alive_period_s < 0:
            raise InputError(f"--keep_alive_period is {self.keep_alive_period_s}; expected 0 or more seconds")

    @property
    def effective_max_wait_s(self) -> int:
        return self.max_wait_s if self.max_wait_s is not None else self.max_run_s + 3600
