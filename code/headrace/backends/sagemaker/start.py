"""Submit a job to SageMaker, as start_job.py's flags describe it. With --dry_run, print the request instead."""

from __future__ import annotations

import argparse
import json
import os
import sys

from headrace.backends import Ended
from headrace.backends.sagemaker.account import (
    Account,
    account_of,
    default_bucket,
    find_region,
    require_region,
    role_arn_of,
)
from headrace.backends.sagemaker.cloud_options import CloudOptions, given_flags
from headrace.backends.sagemaker.job_cost import ask_to_agree, cost_usd, describe_cost
from headrace.backends.sagemaker.job_follow import Console
from headrace.backends.sagemaker.pack import files_to_send
from headrace.backends.sagemaker.request import build_request, checkpoint_uri
from headrace.backends.sagemaker.request_check import check_request
from headrace.backends.sagemaker.submission import Submission
from headrace.backends.sagemaker.training_images import default_image
from headrace.errors import InputError
from headrace.frameworks import FRAMEWORKS
from headrace.job.instances import InstanceTable
from headrace.job.phases import Phases
from headrace.job.settings import MLFLOW_EXPERIMENT_VARIABLE, MLFLOW_URI_VARIABLE, PLACEHOLDER_SECRET, without_password
from headrace.job.spec import JobSpec
from headrace.terminal.display import Display

PREFIX = "headrace"
DEFAULT_RETRIES = 5
MLFLOW_VARIABLES = (MLFLOW_URI_VARIABLE, MLFLOW_EXPERIMENT_VARIABLE)
# Values that a dry run uses, because it asks no AWS account. AWS's own examples use the same values.
PLACEHOLDER_ACCOUNT, PLACEHOLDER_REGION, PLACEHOLDER_ROLE = "123456789012", "us-east-1", "SageMakerRole"


def submit(spec: JobSpec, arguments: argparse.Namespace, table: InstanceTable) -> Ended | None:
    """Submit the job and return its result at its end. With --no-wait or --dry_run, return None at once.

    Raises:
        InputError: SageMaker would not take the job, or the user does not agree to its cost.
        SetupError: AWS refuses a call or cannot be reached.
    """
    retries = DEFAULT_RETRIES if arguments.retries is None else arguments.retries
    if retries < 0:
        raise InputError(f"--retries is {retries}; expected 0 or more")
    files_to_send(spec.source_dir, spec.left_out)  # reports errors in the files before any call to AWS
    if arguments.dry_run:
        options = _dry_options(spec, arguments)
        request = build_request(spec, options, PLACEHOLDER_SECRET)
        check_request(request)
        _explain(spec, options, table)
        print(json.dumps(request, indent=2))
        return None
    region = require_region(arguments.region, os.environ)
    role = arguments.role or os.environ.get("SAGEMAKER_ROLE")
    if not role:
        raise InputError("no role: give --role or set SAGEMAKER_ROLE to the IAM role that the job runs as")
    # Reports errors in the request before any call to AWS.
    check_request(build_request(spec, _options(spec, arguments, region, role, PLACEHOLDER_ACCOUNT), "secret"))
    account = Account(region)
    options = _options(spec, arguments, region, account.role_arn(role), account.id)
    _explain(spec, options, table)
    if not arguments.yes:
        ask_to_agree(cost_usd(spec, table, options.max_run_s), options.max_run_s)
    if not arguments.output_s3_uri:
        account.make_default_bucket()
    phases = Phases.of(spec)
    display = Display(sys.stderr, phases.text, phases.take_line)
    submission = Submission(spec, options, account, Console(display.line, display.ask))
    created = submission.start(retries)
    if not arguments.wait:
        _say(f"not waiting; to stop the job: aws sagemaker stop-training-job --training-job-name {created.job_name}")
        return None
    with display:
        return submission.follow(created, retries, table, arguments.output_dir)


def _dry_options(spec: JobSpec, arguments: argparse.Namespace) -> CloudOptions:
    """Return the options of a dry run, which calls no AWS service; print which of them are placeholders."""
    region = find_region(arguments.region, os.environ)
    role = arguments.role or os.environ.get("SAGEMAKER_ROLE")
    if region is None:
        region = PLACEHOLDER_REGION
        _say(f"no region is given: this request is for {region}")
    if not role:
        role = PLACEHOLDER_ROLE
        _say("no role is given: this request has a placeholder; give a role before you send the request")
    elif not account_of(role):
        _say(f"--role {role} is a name, not an ARN, so the request has a placeholder account; give the role's ARN")
    return _options(spec, arguments, region, role, account_of(role) or PLACEHOLDER_ACCOUNT)


def _options(spec: JobSpec, arguments: argparse.Namespace, region: str, role: str, account: str) -> CloudOptions:
    image = arguments.image_uri or default_image(
        region,
        spec.framework,
        arguments.framework_version or FRAMEWORKS[spec.framework].image_version,
        spec.dnn_group.instance_type,
    )
    return CloudOptions(
        role_arn=role if role.startswith("arn:") else role_arn_of(role, region, account),
        region=region,
        image_uri=image,
        output_s3_uri=arguments.output_s3_uri or f"s3://{default_bucket(region, account)}/{PREFIX}",
        distribution=arguments.distribution,
        tags=_tags(arguments.tag or []),
        environment={name: os.environ[name] for name in MLFLOW_VARIABLES if os.environ.get(name)},
        checkpoint_s3_uri=arguments.checkpoint_s3_uri or "",
        **given_flags(arguments),
    )


def _tags(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise InputError("--tag gives one key twice; give each key once")
    for key, separator, _ in pairs:
        if not key or not separator:
            raise InputError(f"--tag {key!r} is not of the form KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _explain(spec: JobSpec, options: CloudOptions, table: InstanceTable) -> None:
    """Print the job's hosts and cost, and what the user must do for the chosen options, to standard error."""
    _say(f"{spec.job_name} in {options.region}, {spec.processes_per_host} ranks on each dnn host, {options.image_uri}")
    _say(describe_cost(spec, table, options.max_run_s, options.spot))
    if uri := options.environment.get(MLFLOW_URI_VARIABLE):
        where = without_password(uri)
        _say(f"figures go to MLflow too, at {where}; hosts need mlflow-skinny: put it into your requirements.txt")
    if options.enable_network_isolation:
        _say("network isolation: hosts cannot install packages; --image_uri must hold all that headrace needs")
    if options.sharded_channels:
        own = FRAMEWORKS[spec.framework].without_sharing
        advice = f"use {own} for each dataset that reads this channel"
        if spec.tf_data_mode == "service":
            advice = f"workers would need all files. Submit with --tf_data_mode local, and {advice}"
        _say(f"a sharded channel gives each host different files: {advice}")
    if not options.checkpoint_s3_uri:
        uri = checkpoint_uri(spec, options)
        _say(f"checkpoints go to the job's own {uri}; to continue from them, submit with --checkpoint_s3_uri {uri}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
