"""Build SageMaker's CreateTrainingJob request from a job spec, without network, files or clock."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import __version__
from headrace.backends.sagemaker.cloud_options import CloudOptions
from headrace.backends.sagemaker.metrics import metric_definitions
from headrace.errors import InputError
from headrace.job.settings import MPI_OPTIONS_VARIABLE, SECRET_VARIABLE, VERSION_VARIABLE, WHEELS_VARIABLE
from headrace.job.spec import Channel, JobSpec

SOURCE_CHANNEL = "code"
"""Name of the channel that holds the source dir if network isolation keeps hosts from downloading the source dir."""
SOURCE_ARCHIVE = "sourcedir.tar.gz"


def build_request(spec: JobSpec, options: CloudOptions, secret: str, source_s3_uri: str = "") -> dict[str, Any]:
    """Return the request in the form that boto3 and `aws sagemaker create-training-job --cli-input-json` accept.

    Args:
        secret: authenticates the hosts of this job to each other.
        source_s3_uri: address of the packed source dir; default: an address in the job's own folder.

    Raises:
        InputError: SageMaker cannot run this job.
    """
    _check(spec, options)
    source_s3_uri = source_s3_uri or source_uri(spec, options)
    encrypted = options.encrypt_inter_container_traffic
    request: dict[str, Any] = {
        "TrainingJobName": spec.job_name,
        "RoleArn": options.role_arn,
        "AlgorithmSpecification": {
            "TrainingImage": options.image_uri,
            "TrainingInputMode": options.input_mode,
            "MetricDefinitions": metric_definitions(),
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "HyperParameters": _hyperparameters(spec, options, source_s3_uri),
        "InputDataConfig": [_channel(channel, options) for channel in spec.channels],
        "OutputDataConfig": {"S3OutputPath": options.output_s3_uri},
        "CheckpointConfig": {"S3Uri": checkpoint_uri(spec, options), "LocalPath": "/opt/ml/checkpoints"},
        "ResourceConfig": _resources(spec, options),
        "StoppingCondition": {"MaxRuntimeInSeconds": options.max_run_s},
        "EnableNetworkIsolation": options.enable_network_isolation,
        "EnableInterContainerTrafficEncryption": len(spec.hosts()) > 1 if encrypted is None else encrypted,
        "EnableManagedSpotTraining": options.spot,
        "Environment": {
            **options.environment,
            SECRET_VARIABLE: secret,
            VERSION_VARIABLE: __version__,
            WHEELS_VARIABLE: f"{options.output_s3_uri.rstrip('/')}/wheels",
        },
        "Tags": [{"Key": key, "Value": value} for key, value in {"headrace": "", **options.tags}.items()],
    }
    if spec.custom_mpi_options and options.distribution == "launcher":
        request["Environment"][MPI_OPTIONS_VARIABLE] = spec.custom_mpi_options
    if options.enable_network_isolation:
        request["InputDataConfig"].append(_s3_channel(SOURCE_CHANNEL, source_s3_uri, "File"))
        del request["Environment"][WHEELS_VARIABLE]
    _name_groups_everywhere(request["InputDataConfig"], [group.name for group in spec.groups])
    if not request["InputDataConfig"]:
        del request["InputDataConfig"]
    if options.spot:
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = options.max_wait_s or options.max_run_s + 3600
    if options.subnets:
        request["VpcConfig"] = {
            "Subnets": list(options.subnets),
            "SecurityGroupIds": list(options.security_group_ids),
        }
    return request


def source_uri(spec: JobSpec, options: CloudOptions) -> str:
    """Return the S3 address of the packed source dir."""
    return f"{options.output_s3_uri.rstrip('/')}/{spec.job_name}/source/{SOURCE_ARCHIVE}"


def checkpoint_uri(spec: JobSpec, options: CloudOptions) -> str:
    """Return the S3 folder of the job's checkpoints: the given one, else one in the job's own folder."""
    return options.checkpoint_s3_uri or f"{options.output_s3_uri.rstrip('/')}/{spec.job_name}/checkpoints"


def _check(spec: JobSpec, options: CloudOptions) -> None:
    for channel in spec.channels:
        if not channel.uri.startswith("s3://"):
            raise InputError(
                f"channel {channel.name!r} is {channel.uri!r}; SageMaker reads s3://BUCKET/PREFIX "
                "(a local folder needs --no-is_cloud_job)"
            )
        if channel.name == SOURCE_CHANNEL and options.enable_network_isolation:
            raise InputError(
                f"with network isolation, channel {SOURCE_CHANNEL!r} is reserved for the source dir; rename yours"
            )
    words = spec.custom_mpi_options
    if options.distribution != "launcher" and shlex.split(words) != words.split():
        raise InputError(
            f"--custom_mpi_options {words!r}: the toolkit, which starts MPI, does not support quotes; leave them out"
        )
    unknown = set(options.sharded_channels) - {channel.name for channel in spec.channels}
    if unknown:
        raise InputError(f"--sharded_channel {min(unknown)!r} is no channel of this job; give the name of a --channel")
    if spec.is_hetero and options.keep_alive_period_s:
        raise InputError(
            "SageMaker has no warm pools for instance groups; leave out --keep_alive_period, or give --no-is_hetero"
        )


def _hyperparameters(spec: JobSpec, options: CloudOptions, submitted: str) -> dict[str, str]:
    """Return the job's hyperparameters and those for SageMaker's toolkit. The toolkit decodes each value from JSON."""
    if options.enable_network_isolation:
        submitted = f"/opt/ml/input/data/{SOURCE_CHANNEL}/{SOURCE_ARCHIVE}"
    own: dict[str, Any] = {
        "sagemaker_program": "launcher.py",
        "sagemaker_submit_directory": submitted,
        "sagemaker_job_name": spec.job_name,
        "sagemaker_region": options.region,
        "sagemaker_container_log_level": 20,
    }
    return {
        name: json.dumps(value)
        for name, value in {**spec.all_hyperparameters(), **own, **_distribution(spec, options)}.items()
    }


def _distribution(spec: JobSpec, options: CloudOptions) -> Mapping[str, Any]:
    """Return the hyperparameters that make SageMaker's toolkit start MPI; {} if headrace's launcher starts it."""
    if options.distribution == "launcher":
        return {}
    # The toolkit starts MPI in exactly one group. On each host of the other group it runs the entry script once.
    groups = {"sagemaker_distribution_instance_groups": [spec.dnn_group.name]} if spec.is_hetero else {}
    return {
        **groups,
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": spec.processes_per_host,
        "sagemaker_mpi_custom_mpi_options": spec.custom_mpi_options,
    }


def _channel(channel: Channel, options: CloudOptions) -> dict[str, Any]:
    record = _s3_channel(channel.name, channel.uri, options.input_mode)
    source = record["DataSource"]["S3DataSource"]
    if channel.name in options.sharded_channels:
        source["S3DataDistributionType"] = "ShardedByS3Key"
    if channel.groups:
        source["InstanceGroupNames"] = list(channel.groups)
    return record


def _name_groups_everywhere(channels: Sequence[dict[str, Any]], groups: Sequence[str]) -> None:
    """If only some channels list instance groups, list all groups on the others. SageMaker refuses a mixture."""
    sources = [channel["DataSource"]["S3DataSource"] for channel in channels]
    if any("InstanceGroupNames" in source for source in sources):
        for source in sources:
            source.setdefault("InstanceGroupNames", list(groups))


def _s3_channel(name: str, uri: str, input_mode: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "InputMode": input_mode, "DataSource": {"S3DataSource": source}}


def _resources(spec: JobSpec, options: CloudOptions) -> dict[str, Any]:
    record: dict[str, Any] = {"VolumeSizeInGB": options.volume_size_gb}
    if options.keep_alive_period_s:
        record["KeepAlivePeriodInSeconds"] = options.keep_alive_period_s
    if not spec.is_hetero:
        return record | {"InstanceType": spec.dnn_group.instance_type, "InstanceCount": spec.dnn_group.count}
    record["InstanceGroups"] = [
        {"InstanceGroupName": group.name, "InstanceType": group.instance_type, "InstanceCount": group.count}
        for group in spec.groups
    ]
    return record
