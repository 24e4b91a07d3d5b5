"""start_job.py, `headrace run` and `headrace submit`: run the job that the flags describe, on any backend."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from headrace.backends import Ended
from headrace.cli.flags import CLOUD_ONLY, HERE, HERE_ONLY, SAGEMAKER, SLURM, build_parser, build_spec, parse_cpus
from headrace.cluster.run_files import RunPaths
from headrace.errors import InputError, SetupError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.job.instances import InstanceTable, read_instances
from headrace.job.phases import Phases
from headrace.job.spec import JobSpec
from headrace.terminal.parser import exit_status

PREFLIGHT = """Test MPI with a job that has only dnn hosts and does not train. The tests: messages between hosts and
within a host, a broadcast, an allreduce, and a gather with an average. Each test is timed, and its values are checked.
A table and preflight.json show the times and mark slow links. If a rank or a link does not answer, the job ends with an
error that names the rank or link. The flags are those of start_job.py. To train too: start_job.py --preflight ..."""


def main(argv: Sequence[str]) -> int:
    """Run start_job.py; return the exit code: 0 the job succeeded, 1 it failed, 2 the arguments are wrong.

    Scripts call start_job.py, so it submits without asking, whatever the job may cost.
    """
    return _main(build_parser(), argv, _run_or_submit)


def run(argv: Sequence[str]) -> int:
    """Run the current folder's project on simulated hosts of this machine (`headrace run`)."""
    return _main(build_parser("headrace run", Path("."), HERE), argv, _run_here)


def submit(argv: Sequence[str]) -> int:
    """Submit the current folder's project (`headrace submit`) to SageMaker or Slurm.

    Without `--yes`, ask for confirmation before a SageMaker job that can cost over 10 USD or has no known price.
    """
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument("--to")
    to_slurm = chosen.parse_known_args(argv)[0].to == "slurm"
    prog = "headrace submit --to slurm" if to_slurm else "headrace submit"
    parser = build_parser(prog, Path("."), SLURM if to_slurm else SAGEMAKER)
    parser.add_argument(
        "--to", choices=["sagemaker", "slurm"], default="sagemaker", help="where the job runs (%(default)s)"
    )
    if to_slurm:
        from headrace.backends.slurm.slurm_options import add_flags

        add_flags(parser)
        return _main(parser, argv, _submit_to_slurm)
    return _main(_with_yes(parser), argv, _run_or_submit)


def start(argv: Sequence[str]) -> int:
    """Run or submit the current folder's project with start_job.py's flags (`headrace start`, deprecated)."""
    print(
        "headrace: warning: `headrace start` is deprecated; use `headrace run` (without --no-is_cloud_job) on this "
        "machine, or `headrace submit` on SageMaker",
        file=sys.stderr,
    )
    return _main(_with_yes(build_parser("headrace start", Path("."))), argv, _run_or_submit)


def preflight(argv: Sequence[str]) -> int:
    """Run a job of only dnn hosts, whose ranks test MPI and do not train (`headrace preflight`)."""
    parser = _with_yes(build_parser("headrace preflight"))
    parser.description = PREFLIGHT
    return _main(parser, ["--no-is_hetero", "--preflight", "only", *argv], _run_or_submit)


def _with_yes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--yes", action="store_true", default=False, help="submit without asking, whatever the job can cost"
    )
    return parser


def _main(parser: argparse.ArgumentParser, argv: Sequence[str], job: Callable[[argparse.Namespace], int]) -> int:
    return exit_status(parser.prog, lambda: job(parser.parse_args(argv)))


def _run_or_submit(arguments: argparse.Namespace) -> int:
    return _submit(arguments) if arguments.is_cloud_job else _run_here(arguments)


def check_installation(modules: Sequence[str], framework: str = DEFAULT.name) -> None:
    """Raise `SetupError` if this Python lacks a module."""
    for module in modules:
        if find_spec(module) is None:
            raise SetupError(f"{sys.executable} has no {module}: {FRAMEWORKS[framework].how_to_install}")


def _spec(arguments: argparse.Namespace, table: InstanceTable) -> JobSpec:
    return build_spec(arguments, datetime.datetime.now(datetime.timezone.utc), table)


def _run_here(arguments: argparse.Namespace) -> int:
    if arguments.dry_run:
        raise InputError("--dry_run shows a SageMaker request, and a local job has none: leave out --no-is_cloud_job")
    spec = _spec(arguments, read_instances())
    cpus = parse_cpus(arguments.cpus or "", arguments.is_hetero)
    common = ("mpi4py", "psutil", "grpc", "pyroute2", "pathspec")
    check_installation((*FRAMEWORKS[spec.framework].modules, *common), spec.framework)
    from headrace.backends.local.cluster import LocalOptions, run_job
    from headrace.backends.local.log_console import Console
    from headrace.report.runs import describe_run

    unused = [flag for name, flag in CLOUD_ONLY.items() if getattr(arguments, name) is not None]
    if unused:
        print(f"headrace: these flags have no effect on this machine: {', '.join(unused)}", file=sys.stderr)
    options = LocalOptions(arguments.output_dir, arguments.isolation or "auto", cpus, arguments.checkpoint_s3_uri)
    summary = run_job(spec, options, Console(Phases.of(spec)))
    with contextlib.suppress(OSError):  # a closed output does not change the job's outcome
        trains = arguments.preflight != "only"
        print(describe_run(summary, arguments.output_dir / spec.job_name, trains), flush=True)
    return 0 if summary["outcome"] == "succeeded" else 1


def _submit(arguments: argparse.Namespace) -> int:
    for name, flag in HERE_ONLY.items():
        if getattr(arguments, name) is not None:
            raise InputError(f"{flag} is only for jobs on this machine: leave the flag out, or add --no-is_cloud_job")
    table = read_instances(arguments.prices).with_prices(arguments.price or ())
    check_installation(("boto3", "pathspec"))
    from headrace.backends.sagemaker.request_check import check_instance_type
    from headrace.backends.sagemaker.start import submit as submit_to_sagemaker

    for instance_type in [arguments.dnn_instance_type] + [arguments.data_instance_type] * arguments.is_hetero:
        check_instance_type(instance_type)
    return _told(submit_to_sagemaker(_spec(arguments, table), arguments, table))


def _submit_to_slurm(arguments: argparse.Namespace) -> int:
    from headrace.backends.slurm import start as slurm

    arguments.processes_per_host = slurm.processes_per_host(arguments)
    return _told(slurm.submit(_spec(arguments, read_instances()), arguments))


def _told(ended: Ended | None) -> int:
    """Print the results of a job on SageMaker or Slurm, if it has ended; return the exit status."""
    if ended and ended.folder and RunPaths(ended.folder).summary.is_file():
        from headrace.report.runs import describe_run, read_summary

        try:
            print(describe_run(read_summary(ended.folder), ended.folder))
        except InputError as error:  # a bad summary does not change the job's outcome
            print(f"headrace: {error}", file=sys.stderr)
    return 1 if ended and not ended.succeeded else 0
