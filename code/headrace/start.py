"""start_job.py's flags, and the one job spec that they make for either backend."""

from __future__ import annotations

import argparse
import datetime
import secrets
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import HeadraceError, InputError, SetupError
from headrace.job import Channel, InstanceGroup, JobSpec
from headrace.settings import TF_DATA_MODES, OneLineParser
from headrace.topology import DATA_GROUP, DNN_GROUP, HOMOGENEOUS_GROUP

DESCRIPTION = """Train on accelerators that need not wait for data: run a TensorFlow job on CPU hosts that
preprocess (data_group) and hosts that train (dnn_group), on SageMaker or simulated on this machine."""
EXAMPLE = """example, on this machine:
  start_job.py --no-is_cloud_job --num_of_data_instances 2 --processes_per_host 2 \\
      --hyperparameter model=small_cnn --channel training=data/digits"""
LOCAL_PROCESSES_PER_HOST = 2


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 the job succeeded, 1 it failed, 2 the arguments are wrong."""
    try:
        arguments = build_parser().parse_args(argv)
        if arguments.is_cloud_job:
            raise InputError("submitting to SageMaker is not built yet; add --no-is_cloud_job to run on this machine")
        return _run_here(arguments)
    except HeadraceError as error:
        print(f"start_job.py: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("start_job.py: interrupted", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """All flags, grouped as --help shows them."""
    parser = OneLineParser(
        prog="start_job.py",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    yes_no = argparse.BooleanOptionalAction
    job = parser.add_argument_group("what to run")
    job.add_argument("--tf_data_mode", choices=TF_DATA_MODES,
                     help="tf.data service, or plain tf.data in the training process "
                          "(default: service with a data group, else local)")  # fmt: skip
    job.add_argument("--is_cloud_job", action=yes_no, default=True, help="on SageMaker, or on this machine")
    job.add_argument("--is_hetero", action=yes_no, default=True, help="data_group and dnn_group, or dnn hosts alone")
    job.add_argument("--source_dir", type=Path, default=Path(__file__).resolve().parents[1], metavar="DIR",
                     help="what every host gets: launcher.py, the training script (default: code)")  # fmt: skip
    job.add_argument(
        "--training_script", default="train_dnn.py", metavar="FILE", help="runs on the ranks (%(default)s)"
    )
    job.add_argument("--job_name", metavar="NAME", help="default: mode and UTC time")
    job.add_argument("--hyperparameter", action="append", default=[], metavar="NAME=VALUE",
                     help="reaches the training script as --NAME VALUE; repeatable")  # fmt: skip
    job.add_argument("--channel", action="append", default=[], metavar="NAME=URI[@GROUP[,GROUP]]",
                     help="data: s3://… in the cloud, a folder here; for the named groups; repeatable")  # fmt: skip
    job.add_argument("--batch_size", type=int, metavar="N", help="per rank")
    job.add_argument("--epochs", type=int, metavar="N")
    job.add_argument("--steps_per_epoch", type=int, metavar="N")
    hosts = parser.add_argument_group("hosts")
    hosts.add_argument("--num_of_data_instances", type=int, default=2, metavar="N", help="data hosts (%(default)s)")
    hosts.add_argument("--num_of_dnn_instances", type=int, default=1, metavar="N", help="dnn hosts (%(default)s)")
    hosts.add_argument("--data_instance_type", default="ml.c5.18xlarge", metavar="TYPE", help="(%(default)s)")
    hosts.add_argument("--dnn_instance_type", default="ml.p4d.24xlarge", metavar="TYPE", help="(%(default)s)")
    hosts.add_argument("--num_of_data_workers", type=int, metavar="N",
                       help="tf.data workers per host (default: 1 with the service, else 0)")  # fmt: skip
    hosts.add_argument("--processes_per_host", type=int, metavar="N",
                       help=f"ranks per dnn host (default: its GPUs; {LOCAL_PROCESSES_PER_HOST} here)")  # fmt: skip
    here = parser.add_argument_group("on this machine only")
    here.add_argument("--output_dir", type=Path, default=Path("runs"), metavar="DIR",
                      help="runs land in DIR/JOB_NAME (%(default)s)")  # fmt: skip
    here.add_argument("--cpus", default="", metavar="GROUP=LIST[;GROUP=LIST]",
                      help="pin a group's hosts to processors: data_group=1;dnn_group=0")  # fmt: skip
    here.add_argument("--isolation", choices=["auto", "namespaces", "loopback"], default="auto",
                      help="how hosts are simulated (%(default)s: namespaces where allowed)")  # fmt: skip
    return parser


def build_spec(arguments: argparse.Namespace, now: datetime.datetime) -> JobSpec:
    """The job that the flags describe.

    Raises:
        InputError: they describe none.
    """
    mode = arguments.tf_data_mode or ("service" if arguments.is_hetero else "local")
    dnn_name = DNN_GROUP if arguments.is_hetero else HOMOGENEOUS_GROUP
    groups = [InstanceGroup(dnn_name, arguments.dnn_instance_type, arguments.num_of_dnn_instances)]
    if arguments.is_hetero:
        groups.insert(0, InstanceGroup(DATA_GROUP, arguments.data_instance_type, arguments.num_of_data_instances))
    workers = arguments.num_of_data_workers
    default_name = f"{'hetero' if arguments.is_hetero else 'homog'}-{mode}-{now:%Y%m%d-%H%M%S}"
    return JobSpec(
        job_name=arguments.job_name or default_name,
        groups=tuple(groups),
        tf_data_mode=mode,
        processes_per_host=_or(arguments.processes_per_host, LOCAL_PROCESSES_PER_HOST),
        num_of_data_workers=_or(workers, 1 if mode == "service" else 0),
        hyperparameters=_hyperparameters(arguments),
        channels=tuple(_channel(text, arguments.is_hetero) for text in arguments.channel),
        source_dir=arguments.source_dir,
        training_script=arguments.training_script,
    )


def parse_cpus(text: str, is_hetero: bool) -> dict[str, frozenset[int]]:
    """Processors by group from `GROUP=LIST[;GROUP=LIST]`; a list is `0,2-3`."""
    pinned: dict[str, frozenset[int]] = {}
    groups = (DATA_GROUP, DNN_GROUP) if is_hetero else (DNN_GROUP, HOMOGENEOUS_GROUP)
    for part in filter(None, text.split(";")):
        group, _, listed = part.partition("=")
        try:
            cpus = frozenset(cpu for item in listed.split(",") for cpu in _cpu_range(item))
        except ValueError as error:
            raise InputError(f"--cpus {part!r} is not of the form GROUP=LIST, such as data_group=0,2-3") from error
        if group not in groups:
            raise InputError(f"--cpus names group {group!r}; this job has {', '.join(groups)}")
        pinned[HOMOGENEOUS_GROUP if not is_hetero else group] = cpus
    return pinned


def check_installation() -> None:
    """Raises `SetupError` when this Python lacks what simulated hosts need."""
    for module in ("tensorflow", "horovod", "mpi4py", "psutil", "grpc", "pyroute2"):
        if find_spec(module) is None:
            raise SetupError(f"{sys.executable} has no {module}: run `make setup`, then use .venv/bin/python")


def _run_here(arguments: argparse.Namespace) -> int:
    spec = build_spec(arguments, datetime.datetime.now(datetime.timezone.utc))
    cpus = parse_cpus(arguments.cpus, arguments.is_hetero)
    check_installation()
    from headrace.local.console import Console
    from headrace.local.run import LocalOptions, run_job
    from headrace.report.runs import describe_run

    options = LocalOptions(arguments.output_dir, arguments.isolation, cpus, secrets.token_hex(32))
    summary = run_job(spec, options, Console())
    print(describe_run(summary, arguments.output_dir / spec.job_name))
    return 0 if summary["outcome"] == "succeeded" else 1


def _hyperparameters(arguments: argparse.Namespace) -> dict[str, str]:
    given: dict[str, str] = {}
    for name in ("batch_size", "epochs", "steps_per_epoch"):
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
            raise InputError(f"hyperparameter {name!r} is given twice")
        given[name] = value
    return given


def _channel(text: str, is_hetero: bool) -> Channel:
    """A channel; in a homogeneous job the dnn group is all there is, whatever SageMaker calls it."""
    channel = Channel.parse(text)
    if is_hetero:
        return channel
    return Channel(channel.name, channel.uri, tuple(g for g in channel.groups if g not in (DNN_GROUP, DATA_GROUP)))


def _cpu_range(item: str) -> range:
    first, dash, last = item.partition("-")
    cpus = range(int(first), int(last if dash else first) + 1)
    if not cpus:
        raise ValueError(f"{item} is empty")
    return cpus


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
