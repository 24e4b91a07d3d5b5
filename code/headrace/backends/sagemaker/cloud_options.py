"""Options of the SageMaker backend: account, limits, network, and which program starts MPI."""

from __future__ import annotations

import re
from argparse import BooleanOptionalAction, Namespace, _ArgumentGroup
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.errors import InputError
from headrace.job.spec import DISTRIBUTIONS

INPUT_MODES = ("File", "FastFile")
MAX_VOLUME_GB = 16_384
MAX_RUN_LIMIT_S = 28 * 24 * 3600
"""SageMaker's longest training job, 28 days (StoppingCondition's documentation)."""
ROLE_ARN = re.compile(r"arn:aws[a-z\-]*:iam::(\d{12}):role/[\w+=,.@/\-]+")
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9](/[^/?#]+)*/?")
"""Pattern of an S3 location. It excludes `//`, `?` and `#`, which the toolkit on the hosts would misread."""


def _flag(name: str, default: Any, text: str, **options: Any) -> Any:
    """Return a dataclass field that is also a command-line flag; `options` are for argparse."""
    return field(default=default, metadata={"flag": name, "options": {"help": text, **options}})


@dataclass(frozen=True)
class CloudOptions:
    """Where a job runs on SageMaker, and its limits. Times are in seconds.

    Fields made with `_flag` are flags of start_job.py and `headrace submit`; `build_request` puts them in the request.
    """

    role_arn: str
    region: str
    image_uri: str
    output_s3_uri: str
    """The S3 folder for source, model and results; each job has a subfolder of its name."""
    max_run_s: int = _flag(
        "--max_run", 24 * 3600, "end the job after S seconds (default: a day)", type=int, metavar="S"
    )
    volume_size_gb: int = _flag("--volume_size", 50, "disk of each host (default: 50)", type=int, metavar="GB")
    spot: bool = _flag("--spot", False, "managed spot training, with checkpoints", action="store_true")
    max_wait_s: int | None = _flag(
        "--max_wait",
        None,
        "with --spot: wait and run for at most S seconds in all (default: --max_run plus an hour)",
        type=int,
        metavar="S",
    )
    subnets: tuple[str, ...] = _flag(
        "--subnets", (), "subnets of the VPC that the hosts join", nargs="+", action="extend", metavar="ID"
    )
    security_group_ids: tuple[str, ...] = _flag(
        "--security_group_ids", (), "security groups of that VPC", nargs="+", action="extend", metavar="ID"
    )
    encrypt_inter_container_traffic: bool | None = _flag(
        "--encrypt_inter_container_traffic",
        None,
        "encrypt the traffic between hosts (default with several hosts)",
        action=BooleanOptionalAction,
    )
    enable_network_isolation: bool = _flag(
        "--enable_network_isolation",
        False,
        "let hosts reach only each other; the image must contain all that the job needs",
        action="store_true",
    )
    keep_alive_period_s: int = _flag(
        "--keep_alive_period", 0, "keep hosts S seconds in a warm pool; homogeneous jobs only", type=int, metavar="S"
    )
    input_mode: str = _flag("--input_mode", INPUT_MODES[0], "copy the channels, or stream them", choices=INPUT_MODES)
    sharded_channels: tuple[str, ...] = _flag(
        "--sharded_channel",
        (),
        "split this channel's objects between the hosts that see it; repeatable",
        action="append",
        metavar="NAME",
    )
    distribution: str = DISTRIBUTIONS[0]
    checkpoint_s3_uri: str = ""
    """The S3 folder that /opt/ml/checkpoints is copied to and restored from; default: in the job's own folder."""
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
            raise InputError("--max_wait is for managed spot training; add --spot, or leave out --max_wait")
        if self.keep_alive_period_s and self.spot:
            raise InputError("SageMaker has no warm pools for spot hosts; leave out --keep_alive_period or --spot")
        if self.max_wait_s is not None and self.max_wait_s < self.max_run_s:
            raise InputError(f"--max_wait {self.max_wait_s} is less than --max_run {self.max_run_s}; raise --max_wait")
        if bool(self.subnets) != bool(self.security_group_ids):
            raise InputError("a VPC needs both --subnets and --security_group_ids; give both or neither")
        for flag, uri in (("--output_s3_uri", self.output_s3_uri), ("--checkpoint_s3_uri", self.checkpoint_s3_uri)):
            if uri and not _S3_URI.fullmatch(uri):
                raise InputError(f"{flag} {uri!r} is no S3 location; expected s3://BUCKET/PREFIX")


FLAGS: Mapping[str, str] = {each.name: each.metadata["flag"] for each in fields(CloudOptions) if each.metadata}
"""The command-line flag of each field that has one, by the field's name."""


def add_flags(group: _ArgumentGroup) -> None:
    """Add the fields' flags to the argument group. A flag that the user does not give is None."""
    for each in fields(CloudOptions):
        if each.metadata:
            group.add_argument(each.metadata["flag"], dest=each.name, default=None, **each.metadata["options"])


def given_flags(arguments: Namespace) -> dict[str, Any]:
    """Return the values of the fields whose flags were given."""
    given = {name: value for name in FLAGS if (value := getattr(arguments, name)) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
