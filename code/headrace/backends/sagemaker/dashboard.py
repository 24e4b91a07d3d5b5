"""`headrace dashboard JOB_NAME`: show the groups' utilisation, from 0 to 100 %, and the job's metrics in CloudWatch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.backends.sagemaker.account import Account, aws_errors, console, ignored, require_region
from headrace.backends.sagemaker.logs import LOG_GROUP
from headrace.cluster.topology import DATA_GROUP, natural_key
from headrace.errors import SetupError
from headrace.events import parse_event
from headrace.job.instances import InstanceTable, read_instances
from headrace.terminal.parser import OneLineParser

NAMESPACE = "/aws/sagemaker/TrainingJobs"
PERIOD_S = 60
FIRST_LINES = 2000
"""Number of lines, from the start of a host's log, that are searched for the host's topology event."""
TITLES = {
    "headrace:step_ms": "Step time and ideal step time, ms",
    "headrace:samples_per_s": "Samples per second, all ranks",
    "headrace:input_bound_share": "Share of a step spent waiting for data",
}


def main(argv: Sequence[str]) -> int:
    """Print the dashboard's JSON, or with --create make the dashboard in the AWS account."""
    parser = OneLineParser(prog="headrace dashboard", description=__doc__)
    parser.add_argument("job_name", metavar="JOB_NAME")
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: the AWS configuration's)")
    parser.add_argument("--create", action="store_true", help="create the dashboard in AWS, under the job's name")
    arguments = parser.parse_args(argv)
    region = require_region(arguments.region, os.environ)
    account = Account(region)
    job = account.describe_job(arguments.job_name)
    hosts = hosts_by_group(job, logged_groups(account, arguments.job_name))
    types = {group: instance_type for group, (instance_type, _) in _groups(job).items()}
    body = dashboard_body(arguments.job_name, region, hosts, types, read_instances())
    if not arguments.create:
        print(json.dumps(body, indent=2))
        return 0
    with aws_errors("creating the dashboard"):
        answer = account.client("cloudwatch").put_dashboard(
            DashboardName=arguments.job_name, DashboardBody=json.dumps(body)
        )
    if answer.get("DashboardValidationMessages"):
        raise SetupError(f"CloudWatch refuses the dashboard: {answer['DashboardValidationMessages']}")
    print(f"{console(region, 'cloudwatch/home')}#dashboards:name={arguments.job_name}")
    return 0


def logged_groups(account: Account, job_name: str) -> dict[str, str]:
    """Return each host's group, read from the host's topology event; empty if the job has no logs yet."""
    logs, groups = account.client("logs"), {}
    with aws_errors(f"reading the logs of {job_name}"), ignored("ResourceNotFoundException"):
        pages = logs.get_paginator("describe_log_streams")  # a page has fifty hosts
        found = pages.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job_name}/")
        for stream in (each for page in found for each in page["logStreams"]):
            answer = logs.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream["logStreamName"], startFromHead=True, limit=FIRST_LINES
            )
            for event in map(parse_event, (line["message"] for line in answer["events"])):
                if event and event.name == "topology" and {"host", "group"} <= event.fields.keys():
                    groups[event.fields["host"]] = event.fields["group"]
    return groups


def hosts_by_group(job: Mapping[str, Any], logged: Mapping[str, str]) -> dict[str, list[str]]:
    """Return host names by group. If the logs do not show all hosts, assume that data hosts have the lowest numbers."""
    groups = _groups(job)
    total = sum(count for _, count in groups.values())
    if set(logged.values()) <= set(groups) and len(logged) == total:
        return {group: [host for host in sorted(logged, key=natural_key) if logged[host] == group] for group in groups}
    if len(groups) > 1:
        print(
            "the logs do not yet say which host is in which group; assuming that the data group's hosts come first",
            file=sys.stderr,
        )
    names = iter(f"algo-{number}" for number in range(1, total + 1))
    ordered = sorted(groups, key=lambda group: group != DATA_GROUP)
    return {group: [next(names) for _ in range(groups[group][1])] for group in ordered}


def dashboard_body(
    job_name: str, region: str, hosts: Mapping[str, Sequence[str]], types: Mapping[str, str], table: InstanceTable
) -> dict[str, Any]:
    """Return the dashboard: each group's CPU and GPU utilisation, from 0 to 100 %, and the job's own metrics.

    SageMaker reports a host's utilisation as the sum over its processors, so that four processors reach 400 %
    (SageMaker documentation, "Amazon CloudWatch metrics for training jobs"). The dashboard divides by their number.
    """
    rows: list[list[dict[str, Any]]] = []
    for group, members in hosts.items():
        kind = table.get(types[group])
        counts = {"CPUUtilization": kind.vcpus if kind else None, "GPUUtilization": kind.gpus if kind else None}
        row = []
        for metric, count in counts.items():
            if count != 0:
                unit, axis = ("%", {"min": 0, "max": 100}) if count else ("% times processors", {"min": 0})
                name = f"{group}: {metric.removesuffix('Utilization')} utilisation"
                title = f"{name} of {len(members)} × {types[group]}, {unit}"
                row.append(_widget(title, region, _scaled(job_name, members, metric, count or 1), axis))
        rows.append(row)
    own = []
    for name, title in TITLES.items():
        names = [name, "headrace:ideal_step_ms"] if name == "headrace:step_ms" else [name]
        own.append(
            _widget(title, region, [[NAMESPACE, each, "TrainingJobName", job_name] for each in names], {"min": 0})
        )
    return {"start": "-PT3H", "periodOverride": "inherit", "widgets": _laid_out([*rows, own])}


def _scaled(job_name: str, members: Sequence[str], metric: str, count: int) -> list[list[Any]]:
    lines: list[list[Any]] = []
    for number, host in enumerate(members, 1):
        lines.append([{"expression": f"m{number}/{count}", "label": host, "id": f"e{number}"}])
        lines.append([NAMESPACE, metric, "Host", f"{job_name}/{host}", {"id": f"m{number}", "visible": False}])
    return lines


def _widget(title: str, region: str, metrics: list[list[Any]], axis: Mapping[str, int]) -> dict[str, Any]:
    properties = {
        "title": title,
        "region": region,
        "view": "timeSeries",
        "stat": "Average",
        "period": PERIOD_S,
        "metrics": metrics,
        "yAxis": {"left": dict(axis)},
    }
    return {"type": "metric", "properties": properties}


def _laid_out(rows: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the widgets with their positions; a dashboard is 24 units wide."""
    height, placed = 6, []
    for y, row in enumerate(row for row in rows if row):
        width = 24 // len(row)
        placed += [
            {**widget, "x": x * width, "y": y * height, "width": width, "height": height}
            for x, widget in enumerate(row)
        ]
    return placed


def _groups(job: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    resources = job["ResourceConfig"]
    if resources.get("InstanceGroups"):
        return {
            each["InstanceGroupName"]: (each["InstanceType"], each["InstanceCount"])
            for each in resources["InstanceGroups"]
        }
    return {"dnn hosts": (resources["InstanceType"], resources["InstanceCount"])}
