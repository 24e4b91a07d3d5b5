"""Submit the job that the flags describe to Slurm; with --dry_run, print its batch script instead."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from headrace.backends import Ended
from headrace.backends.slurm import sbatch
from headrace.backends.slurm.batch_script import build_script
from headrace.backends.slurm.slurm_options import SlurmOptions, options_from
from headrace.cluster.run_files import as_given
from headrace.cluster.slurm import FREE_PORTS, SECRET_FILE
from headrace.errors import InputError, SetupError
from headrace.job.phases import Phases
from headrace.job.spec import Channel, JobSpec
from headrace.terminal.display import Display


def processes_per_host(given: argparse.Namespace) -> int:
    """Return the number of ranks on each dnn node: --processes_per_host, else the GPUs in --dnn_gres, else one."""
    asked = given.processes_per_host
    gpus = options_from(given, Path("run"), sys.executable).dnn.gpus
    if asked and asked > gpus > 0:
        raise InputError(
            f"--processes_per_host {asked} is too many for the GPUs in --dnn_gres {given.dnn_gres}; give at most {gpus}"
        )
    return asked or max(gpus, 1)


def submit(spec: JobSpec, given: argparse.Namespace) -> Ended | None:
    """Submit the job and return its result at its end. With --no-wait or --dry_run, return None at once.

    Raises:
        InputError: the flags do not describe a job for Slurm.
        SetupError: Slurm refuses the job or does not answer.
    """
    run = given.output_dir.resolve() / spec.job_name
    options = options_from(given, run, sys.executable)
    spec = dataclasses.replace(spec, channels=tuple(map(_on_shared_folder, spec.channels)))
    if spec.num_of_data_workers >= FREE_PORTS and not options.dnn.exclusive:
        raise InputError(f"{spec.num_of_data_workers} workers need too many ports for a shared node: add --exclusive")
    checkpoints = _folder(given.checkpoint_s3_uri, "--checkpoint_s3_uri") if given.checkpoint_s3_uri else None
    if given.dry_run:
        print(build_script(spec, options), end="")
        _say("not submitted. The script needs the run's folder (code, secret). To make the folder, leave out --dry_run")
        return None
    job_id = sbatch.submit(sbatch.write_run(spec, options, checkpoints))
    _say(f"{spec.job_name} is Slurm's job {job_id}; script, logs, results in {run}")
    if not given.wait:
        _say(f"not waiting; to stop the job: scancel {job_id}")
        return None
    return _follow(spec, options, job_id)


def _follow(spec: JobSpec, options: SlurmOptions, job_id: str) -> Ended:
    phases = Phases.of(spec)
    display = Display(sys.stderr, phases.text, phases.take_line)
    follower = sbatch.Follower(job_id, options.run, display.line)
    with display:
        while True:
            try:
                state = follower.wait()
                break
            except KeyboardInterrupt:
                if not display.ask(f"\nstop job {job_id}? [y/N] "):
                    raise SetupError(f"not following any more; to stop the job: scancel {job_id}") from None
                follower.cancel()
    (options.run / SECRET_FILE).unlink(missing_ok=True)
    if state != "COMPLETED":
        _say(f"Slurm's state of job {job_id}: {state}")
    outcome = sbatch.outcome_of(options.run)
    if outcome is None:
        cause = sbatch.host_failure(options.run) or f"no host has recorded the cause; see {options.run}"
        _say(f"{spec.job_name} failed and has no summary: {cause}")
    return Ended(outcome == "succeeded", options.run)


def _on_shared_folder(channel: Channel) -> Channel:
    return dataclasses.replace(channel, uri=str(_folder(channel.uri, f"channel {channel.name!r}")))


def _folder(uri: str, what: str) -> Path:
    """Return the path of a shared folder. Raise `InputError` for a URI other than file://, or for a line break."""
    if "://" in uri.removeprefix("file://"):
        raise InputError(f"{what} is {uri}; on Slurm give a folder that all nodes see")
    path = as_given(uri).absolute()
    if "\n" in str(path):
        raise InputError(f"{what} is {str(path)!r}; a path must have no line breaks")
    return path


def _say(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)
