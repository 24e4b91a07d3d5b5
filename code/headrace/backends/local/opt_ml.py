"""Write a host's /opt/ml folder and environment as SageMaker does.

Sources: the SageMaker documentation on how training containers get their configuration, and the
sagemaker-training toolkit, with which the tests compare `toolkit_environ` and `script_arguments`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import HostPaths, as_given, write_json
from headrace.errors import InputError
from headrace.job.source import host_files, write_files
from headrace.job.spec import Channel, InstanceGroup, JobSpec, as_flag

BASE_DIR = Path("/opt/ml")
SOURCE_ON_HOSTS = "/opt/ml/code"


def write_host_folder(folder: Path, spec: JobSpec, host: str, checkpoints: Path | None = None) -> None:
    """Write everything that a host finds under /opt/ml when its entry script starts.

    Args:
        checkpoints: user's folder to link as /opt/ml/checkpoints; None: make an empty folder there.

    Raises:
        InputError: a channel's folder does not exist.
    """
    paths = HostPaths(folder)
    for place in (paths.channel_dir, paths.model_dir, paths.output_dir):
        place.mkdir(parents=True, exist_ok=True)
    if checkpoints:
        paths.checkpoint_dir.symlink_to(checkpoints)
    else:
        paths.checkpoint_dir.mkdir()
    write_files(host_files(spec.source_dir, spec.left_out), paths.code_dir)
    write_json(paths.resource_config, resource_config(spec, host))
    own = {"sagemaker_program": "launcher.py", "sagemaker_submit_directory": SOURCE_ON_HOSTS}
    hyperparameters = {**spec.all_hyperparameters(), **own}
    write_json(paths.hyperparameters, {name: json.dumps(value) for name, value in hyperparameters.items()})
    write_json(paths.config_dir / "inputdataconfig.json", input_data_config(spec, host))
    for channel in visible_channels(spec, host):
        (paths.channel_dir / channel.name).symlink_to(channel_path(channel))


def channel_path(channel: Channel) -> Path:
    """Return a channel's folder on this machine. Raises `InputError` if there is none."""
    path = as_given(channel.uri).resolve()
    if channel.uri.startswith("s3://"):
        raise InputError(f"channel {channel.name!r} is {channel.uri}; a run on this machine needs a local folder")
    if not path.is_dir():
        wrong = "a channel is a folder, and this is a file" if path.exists() else "no such folder"
        raise InputError(f"channel {channel.name!r}: {wrong}: {path}")
    return path


def checkpoint_path(uri: str, source_dir: Path) -> Path:
    """Return the local folder for checkpoints; make it if missing. Raises `InputError` if that is not possible."""
    if uri.startswith("s3://"):
        raise InputError(f"--checkpoint_s3_uri is {uri}; a run on this machine needs the path of a local folder")
    path = as_given(uri).resolve()
    if not uri or path == source_dir.resolve():
        raise InputError(f"--checkpoint_s3_uri is {uri!r}; expected a folder, and not --source_dir itself")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--checkpoint_s3_uri: cannot make the folder {path}: {error.strerror}") from error
    return path


def refuse_hidden(folders: Iterable[Path]) -> None:
    """Raise `InputError` for a folder below /opt/ml: a host in a namespace sees its own /opt/ml instead."""
    for folder in folders:
        if folder.is_relative_to(BASE_DIR):
            raise InputError(
                f"{folder} lies in {BASE_DIR}, where each simulated host has its own folder: choose another, or use "
                "--isolation loopback"
            )


def visible_channels(spec: JobSpec, host: str) -> list[Channel]:
    """Return the channels that this host's group sees."""
    group = spec.hosts()[host].name
    return [channel for channel in spec.channels if not channel.groups or group in channel.groups]


def resource_config(spec: JobSpec, host: str) -> dict[str, Any]:
    """Return the content of resourceconfig.json on `host`."""
    hosts = spec.hosts()
    return {
        "current_host": host,
        "current_instance_type": hosts[host].instance_type,
        "current_group_name": hosts[host].name,
        "hosts": list(hosts),
        "instance_groups": [
            {
                "instance_group_name": group.name,
                "instance_type": group.instance_type,
                "hosts": _members(group, hosts),
            }
            for group in spec.groups
        ],
        "network_interface_name": "eth0",
    }


def input_data_config(spec: JobSpec, host: str) -> dict[str, Any]:
    """Return the content of inputdataconfig.json on `host`."""
    described = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    return {channel.name: described for channel in visible_channels(spec, host)}


def script_arguments(spec: JobSpec) -> list[str]:
    """Return the arguments that the toolkit gives the entry script: `--name value`, sorted by name."""
    pairs = sorted(spec.all_hyperparameters().items())
    return [text for pair in pairs for text in as_flag(*pair)]


def toolkit_environ(spec: JobSpec, host: str, base_dir: Path) -> dict[str, str]:
    """Return the variables that the toolkit and SageMaker set, except `SM_TRAINING_ENV`, which repeats the others."""
    config = resource_config(spec, host)
    group = spec.hosts()[host]
    paths, channels = HostPaths(base_dir), [channel.name for channel in visible_channels(spec, host)]
    groups = {each["instance_group_name"]: each for each in config["instance_groups"]}
    hyperparameters = spec.all_hyperparameters()
    return {
        "SAGEMAKER_BASE_DIR": str(base_dir),
        "TRAINING_JOB_NAME": spec.job_name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:local:000000000000:training-job/{spec.job_name}",
        "SM_HOSTS": _compact(config["hosts"]),
        "SM_CURRENT_HOST": host,
        "SM_CURRENT_INSTANCE_TYPE": group.instance_type,
        "SM_CURRENT_INSTANCE_GROUP": group.name,
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": _compact(_members(group, spec.hosts())),
        "SM_INSTANCE_GROUPS": _compact(list(groups)),
        "SM_INSTANCE_GROUPS_DICT": _compact(groups),
        "SM_IS_HETERO": _compact(spec.is_hetero),
        "SM_NETWORK_INTERFACE_NAME": config["network_interface_name"],
        "SM_RESOURCE_CONFIG": _compact(config),
        "SM_INPUT_DIR": str(paths.config_dir.parent),
        "SM_INPUT_CONFIG_DIR": str(paths.config_dir),
        "SM_OUTPUT_DIR": str(paths.output_dir.parent),
        "SM_OUTPUT_DATA_DIR": str(paths.output_dir),
        "SM_OUTPUT_INTERMEDIATE_DIR": str(paths.output_dir.parent / "intermediate"),
        "SM_MODEL_DIR": str(paths.model_dir),
        "SM_MODULE_NAME": "launcher",
        "SM_USER_ENTRY_POINT": "launcher.py",
        "SM_MODULE_DIR": str(paths.code_dir),
        "SM_LOG_LEVEL": "20",
        "SM_FRAMEWORK_MODULE": "",
        "SM_FRAMEWORK_PARAMS": "{}",
        "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
        "SM_USER_ARGS": _compact(script_arguments(spec)),
        "SM_NUM_CPUS": str(os.cpu_count()),
        "SM_NUM_GPUS": "0",
        "SM_NUM_NEURONS": "0",
        "SM_INPUT_DATA_CONFIG": _compact(input_data_config(spec, host)),
        "SM_CHANNELS": _compact(sorted(channels)),
        **{f"SM_CHANNEL_{name.upper()}": str(paths.channel_dir / name) for name in channels},
        "SM_HPS": _compact(hyperparameters),
        **{f"SM_HP_{name.upper()}": value for name, value in hyperparameters.items()},
    }


def _members(group: InstanceGroup, hosts: Mapping[str, InstanceGroup]) -> list[str]:
    return [name for name, member in hosts.items() if member == group]


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
