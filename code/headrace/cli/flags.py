"""Flags of start_job.py and of `headrace run` and `submit`, and the job spec that they describe."""

from __future__ import annotations

import argparse
import datetime
from dataclasses import replace
from pathlib import Path

from headrace.backends.sagemaker import cloud_options
from headrace.cluster.run_files import as_given
from headrace.cluster.topology import DATA_GROUP, DNN_GROUP, HOMOGENEOUS_GROUP
from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.job.bundled import TRAINING_SCRIPTS, own_folder
from headrace.job.instances import InstanceTable
from headrace.job.settings import LOCAL_WORKERS, TF_DATA_MODES, default_mode, describe_settings
from headrace.job.spec import DISTRIBUTIONS, ISOLATIONS, LOCAL_PROCESSES_PER_HOST, Channel, InstanceGroup, JobSpec
from headrace.terminal.parser import OneLineParser

ANYWHERE, HERE, SAGEMAKER = "on SageMaker or simulated on this machine", "simulated on this machine", "on SageMaker"
SLURM = "on a Slurm cluster"
"""Where a command's jobs run: `ANYWHERE`, `HERE`, `SAGEMAKER` or `SLURM`. For `ANYWHERE`, --is_cloud_job decides."""
DESCRIPTION = """Train on accelerators that need not wait for data: run a TensorFlow or PyTorch job on CPU hosts that
preprocess (data_group) and hosts that train (dnn_group), {place}."""
EXAMPLES = {
    ANYWHERE: """examples:
  {prog} --role ROLE --channel training=s3://BUCKET/images@data_group   submit to SageMaker
  {prog} --role ROLE --dry_run > job.json                               only show the request
  {prog} --no-is_cloud_job --num_of_data_instances 2 --processes_per_host 2 \\
      --hyperparameter model=small_cnn --channel training=data/digits         run it on this machine""",
    HERE: """examples:
  {prog} --num_of_data_instances 1 --hyperparameter model=small_cnn   with one simulated data host
  {prog} --no-is_hetero --hyperparameter model=small_cnn              without data hosts, to compare""",
    SAGEMAKER: """examples:
  {prog} --role ROLE --channel training=s3://BUCKET/images@data_group
  {prog} --role ROLE --dry_run > job.json                               only show the request""",
    SLURM: """examples:
  {prog} --dnn_partition gpu --dnn_gres gpu:8 --data_partition cpu --num_of_data_instances 4
  {prog} --dnn_partition gpu --dry_run > job.sh                         only show the batch script""",
}
OF_THE_LAUNCHER = "launcher settings and defaults. Change one with --hyperparameter NAME=VALUE; times are in seconds:"
WITHOUT_A_FLAG = (
    "startup_timeout_s", "lease_s", "grace_s", "stop_grace_s", "stall_timeout_s", "max_restarts", "min_data_hosts",
    "preflight_timeout_s",
)  # fmt: skip
DEFAULT_DATA_INSTANCES = 2
MOST_CPUS = 8_192
"""Largest number of processors that Linux supports."""
HERE_ONLY = {"cpus": "--cpus", "isolation": "--isolation"}
_OF_THE_ACCOUNT = (
    "role", "region", "image_uri", "framework_version", "output_s3_uri", "tag", "prices", "price", "retries",
)  # fmt: skip
CLOUD_ONLY = {**{name: f"--{name}" for name in _OF_THE_ACCOUNT}, **cloud_options.FLAGS}
"""Flags for SageMaker only. Keys are the names of the parsed arguments, values are the flags that users type."""
YES_NO = argparse.BooleanOptionalAction


def build_parser(
    prog: str = "start_job.py", source_dir: Path | None = None, place: str = ANYWHERE
) -> argparse.ArgumentParser:
    """Return the parser of a command's flags. Flags for other places are refused, and keep their defaults.

    Args:
        source_dir: default of --source_dir; None: headrace's own folder.
        place: where the command's jobs run: `ANYWHERE`, `HERE`, `SAGEMAKER` or `SLURM`.
    """
    parser = OneLineParser(
        prog=prog,
        description=DESCRIPTION.format(place=place),
        epilog=f"{EXAMPLES[place].format(prog=prog)}\n\n{OF_THE_LAUNCHER}\n{describe_settings(WITHOUT_A_FLAG)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(**dict.fromkeys((*HERE_ONLY, *CLOUD_ONLY)), is_cloud_job=place == SAGEMAKER)
    parser.set_defaults(dry_run=False, wait=True, distribution=DISTRIBUTIONS[0], yes=True)
    _add_job_flags(parser, source_dir or own_folder(), place)
    _add_host_flags(parser, place)
    if place in (ANYWHERE, SAGEMAKER):
        _add_cloud_flags(parser)
    if place in (ANYWHERE, HERE):
        _add_flags_of_runs_here(parser)
    return parser


def _add_job_flags(parser: argparse.ArgumentParser, source_dir: Path, place: str) -> None:
    job = parser.add_argument_group("what to run")
    job.add_argument(
        "--framework", choices=FRAMEWORKS, default=DEFAULT.name, help="framework of the script (%(default)s)"
    )
    job.add_argument(
        "--tf_data_mode",
        choices=TF_DATA_MODES,
        help="`service`: batches come from tf.data service (PyTorch: feed servers); `local`: from the "
        "training process (default: service; with --no-is_hetero: local)",
    )
    if place == ANYWHERE:
        job.add_argument("--is_cloud_job", action=YES_NO, default=True, help="run on SageMaker, or on this machine")
    elif place == HERE:  # so that arguments of start_job.py work here too
        job.add_argument("--no-is_cloud_job", dest="is_cloud_job", action="store_false", help=argparse.SUPPRESS)
    job.add_argument("--is_hetero", action=YES_NO, default=True, help="use data hosts and dnn hosts, or only dnn hosts")
    job.add_argument(
        "--source_dir",
        type=as_given,
        default=source_dir,
        metavar="DIR",
        help="folder that every host gets: training script, its modules (%(default)s)",
    )
    job.add_argument(
        "--training_script", metavar="FILE", help="script that ranks run (default: train_dnn.py or train_torch.py)"
    )
    job.add_argument("--job_name", metavar="NAME", help="name of the job (default: made from mode and UTC time)")
    job.add_argument(
        "--output_dir",
        type=as_given,
        default=Path("runs"),
        metavar="DIR",
        help="runs and results are written to DIR/JOB_NAME (%(default)s)",
    )
    job.add_argument(
        "--hyperparameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed to the training script as --NAME VALUE; repeatable",
    )
    job.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=URI[@GROUP[,GROUP]]",
        help="data for all hosts, or only for hosts of GROUP; URI: s3://… on SageMaker, elsewhere a folder; repeatable",
    )
    job.add_argument(
        "--checkpoint_s3_uri",
        metavar="URI",
        help="where checkpoints are saved and looked for; URI: s3://… on SageMaker, elsewhere a folder",
    )
    job.add_argument("--batch_size", type=int, metavar="N", help="examples in a batch of one rank")
    job.add_argument("--epochs", type=int, metavar="N")
    job.add_argument("--steps_per_epoch", type=int, metavar="N")
    job.add_argument(
        "--preflight",
        nargs="?",
        const="first",
        choices=["first", "only"],
        help="`first`: test MPI between the ranks, then train; `only`: test MPI, do not train",
    )
    job.add_argument(
        "--metrics_port",
        type=int,
        metavar="PORT",
        help="port where the leader serves OpenMetrics to anybody (default: none)",
    )


def _add_host_flags(parser: argparse.ArgumentParser, place: str) -> None:
    hosts = parser.add_argument_group("hosts")
    hosts.add_argument(
        "--num_of_data_instances", type=int, metavar="N", help=f"data hosts (default: {DEFAULT_DATA_INSTANCES})"
    )
    hosts.add_argument("--num_of_dnn_instances", type=int, default=1, metavar="N", help="dnn hosts (%(default)s)")
    if place != SLURM:
        hosts.add_argument("--data_instance_type", default="ml.c5.18xlarge", metavar="TYPE", help="(%(default)s)")
        hosts.add_argument("--dnn_instance_type", default="ml.p4d.24xlarge", metavar="TYPE", help="(%(default)s)")
    hosts.add_argument(
        "--num_of_data_workers",
        type=int,
        metavar="N",
        help="workers (PyTorch: feed servers) per host (default: 1; in local mode 0)",
    )
    hosts.add_argument(
        "--local_workers",
        choices=LOCAL_WORKERS,
        default=LOCAL_WORKERS[0],
        help="`off`: only data hosts make batches, dnn hosts only train (%(default)s)",
    )
    hosts.add_argument(
        "--processes_per_host",
        type=int,
        metavar="N",
        help=f"ranks per dnn host (default: one per GPU; {LOCAL_PROCESSES_PER_HOST} on this machine)",
    )
    hosts.add_argument(
        "--custom_mpi_options",
        default="",
        metavar="TEXT",
        help="more options for mpirun; write --custom_mpi_options='-x NAME=VALUE'",
    )


def _add_cloud_flags(parser: argparse.ArgumentParser) -> None:
    cloud = parser.add_argument_group("on SageMaker only")
    cloud.add_argument("--dry_run", action="store_true", help="print the CreateTrainingJob request, send nothing")
    cloud.add_argument("--wait", action=YES_NO, default=True, help="follow the job and its logs to the end")
    cloud.add_argument("--role", metavar="ARN", help="the job's IAM role, ARN or name (default: SAGEMAKER_ROLE)")
    cloud.add_argument("--region", metavar="NAME", help="AWS region (default: from the AWS configuration)")
    cloud.add_argument("--image_uri", metavar="URI", help="image (default: AWS's training image of the framework)")
    cloud.add_argument(
        "--framework_version", metavar="V", help="version of the framework in the image (default: the one tested)"
    )
    cloud.add_argument(
        "--output_s3_uri",
        metavar="URI",
        help="URI of source and results (default: s3://sagemaker-REGION-ACCOUNT/headrace)",
    )
    cloud_options.add_flags(cloud)
    cloud.add_argument(
        "--distribution",
        choices=DISTRIBUTIONS,
        default=DISTRIBUTIONS[0],
        help="who starts MPI: headrace's launcher, or the SageMaker toolkit (%(default)s)",
    )
    cloud.add_argument("--tag", action="append", metavar="KEY=VALUE", help="tag of the job; repeatable")
    cloud.add_argument("--retries", type=int, metavar="N", help="more tries if SageMaker has no capacity (default: 5)")
    cloud.add_argument("--price", action="append", metavar="TYPE=USD", help="your price per hour of TYPE; repeatable")
    cloud.add_argument("--prices", type=Path, metavar="CSV", help="your price table, with the columns of instances.csv")


def _add_flags_of_runs_here(parser: argparse.ArgumentParser) -> None:
    here = parser.add_argument_group("on this machine only")
    here.add_argument(
        "--cpus", metavar="GROUP=LIST[;GROUP=LIST]", help="pin a group's hosts to processors: data_group=1;dnn_group=0"
    )
    here.add_argument(
        "--isolation", choices=ISOLATIONS, help="how hosts are simulated (default auto: namespaces where allowed)"
    )


def build_spec(arguments: argparse.Namespace, now: datetime.datetime, table: InstanceTable) -> JobSpec:
    """Return the job that the flags describe.

    Raises:
        InputError: the flags describe no valid job.
    """
    mode = arguments.tf_data_mode or default_mode(arguments.is_hetero)
    dnn_name = DNN_GROUP if arguments.is_hetero else HOMOGENEOUS_GROUP
    groups = [InstanceGroup(dnn_name, arguments.dnn_instance_type, arguments.num_of_dnn_instances)]
    if arguments.is_hetero:
        count = _or(arguments.num_of_data_instances, DEFAULT_DATA_INSTANCES)
        groups.insert(0, InstanceGroup(DATA_GROUP, arguments.data_instance_type, count))
    elif arguments.num_of_data_instances:
        raise InputError(
            f"--num_of_data_instances {arguments.num_of_data_instances} needs a data group; leave out --no-is_hetero"
        )
    workers = arguments.num_of_data_workers
    kind = "hetero" if arguments.is_hetero else "homog"
    default_name = f"{kind}-{mode}-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"
    return JobSpec(
        job_name=arguments.job_name or default_name,
        groups=tuple(groups),
        tf_data_mode=mode,
        processes_per_host=_processes(arguments, table),
        num_of_data_workers=_or(workers, 1 if mode == "service" else 0),
        local_workers=arguments.local_workers,
        hyperparameters=_hyperparameters(arguments),
        channels=tuple(_channel(text, arguments.is_hetero) for text in arguments.channel),
        source_dir=arguments.source_dir,
        training_script=arguments.training_script or TRAINING_SCRIPTS[arguments.framework],
        custom_mpi_options=arguments.custom_mpi_options,
        framework=arguments.framework,
        left_out=_not_for_hosts(arguments),
    )


def parse_cpus(text: str, is_hetero: bool) -> dict[str, frozenset[int]]:
    """Return the processors of each group from `GROUP=LIST[;GROUP=LIST]`, with lists such as `0,2-3`."""
    pinned: dict[str, frozenset[int]] = {}
    groups = (DATA_GROUP, DNN_GROUP) if is_hetero else (DNN_GROUP, HOMOGENEOUS_GROUP)
    for part in filter(None, text.split(";")):
        group, _, listed = part.partition("=")
        try:
            cpus = frozenset(cpu for item in listed.split(",") for cpu in _cpu_range(item))
        except ValueError as error:
            raise InputError(
                f"--cpus {part!r} is malformed or has too large a number; expected GROUP=LIST, such as data_group=0,2-3"
            ) from error
        if group not in groups:
            raise InputError(f"--cpus: this job has no group {group!r}; expected {' or '.join(groups)}")
        pinned[HOMOGENEOUS_GROUP if not is_hetero else group] = cpus
    return pinned


def _processes(arguments: argparse.Namespace, table: InstanceTable) -> int:
    given: int | None = arguments.processes_per_host
    if not arguments.is_cloud_job:
        return _or(given, LOCAL_PROCESSES_PER_HOST)
    return table.ranks_on(arguments.dnn_instance_type, given)


def _hyperparameters(arguments: argparse.Namespace) -> dict[str, str]:
    given: dict[str, str] = {"preflight": arguments.preflight} if arguments.preflight else {}
    for name in ("batch_size", "epochs", "steps_per_epoch", "metrics_port"):
        value = getattr(arguments, name)
        if value is not None:
            if value < 1:
                raise InputError(f"--{name} is {value}; expected 1 or more")
            given[name] = str(value)
    for text in arguments.hyperparameter:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--hyperparameter {text!r} is not of the form NAME=VALUE")
        if name in given:
            raise InputError(f"hyperparameter {name!r} is given twice; give it once")
        given[name] = value
    return given


def _not_for_hosts(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Return the folders of runs, channels and checkpoints. Hosts get the source dir without these folders."""
    uris = [Channel.parse(text).uri for text in arguments.channel] + [arguments.checkpoint_s3_uri or ""]
    if arguments.output_dir.resolve() == arguments.source_dir.resolve():
        raise InputError(
            f"--output_dir and --source_dir are both {arguments.output_dir}: hosts would get old results; change one"
        )
    return (arguments.output_dir, *(as_given(uri) for uri in uris if uri and not uri.startswith("s3://")))


def _channel(text: str, is_hetero: bool) -> Channel:
    """Parse a --channel flag. Without data hosts, remove the flag's group names: all hosts get the channel."""
    channel = Channel.parse(text)
    if is_hetero:
        return channel
    if set(channel.groups) == {DATA_GROUP}:
        raise InputError(
            f"channel {channel.name!r} is only for data_group, which this job lacks: no host would see it; leave it out"
        )
    return replace(channel, groups=tuple(each for each in channel.groups if each not in (DNN_GROUP, DATA_GROUP)))


def _cpu_range(item: str) -> range:
    first, dash, last = item.partition("-")
    cpus = range(int(first), int(last if dash else first) + 1)
    if not cpus or cpus[-1] >= MOST_CPUS:
        raise ValueError(f"{item} is empty or too large")
    return cpus


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
