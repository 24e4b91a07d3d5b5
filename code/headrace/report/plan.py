"""`headrace plan RUN`: read a finished run, and advise how many data hosts to rent and where to make batches."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.cluster.topology import DATA_GROUP, DNN_GROUP
from headrace.errors import InputError
from headrace.job.instances import InstanceTable, InstanceType, read_instances
from headrace.report.advice import Advice, advise
from headrace.report.candidates import Option, options
from headrace.report.compare import usd
from headrace.report.measured import Measured, measured
from headrace.report.pipeline_findings import look_at
from headrace.report.run_cost import parse_stands_for
from headrace.report.runs import Find, read_summary
from headrace.terminal.parser import OneLineParser
from headrace.terminal.tables import as_table

WHO_MAKES = {"trainer": "dnn hosts alone", "data": "data hosts alone", "both": "both"}
HEAD = ("", "batches made by", "data hosts", "step", "waiting", "limit", "samples/s", "$/hour", "$/million", "$/epoch")
MOST_DATA_HOSTS = 8
UNTOLD_UNTIL = 0.05
"""If more than this share of training time is outside steps, the plan says so. Smaller shares hardly change prices."""
UNEXPLAINED_FROM = 0.2
"""If at least this share of a step is unexplained, the plan says so. A smaller share may be a formula's error."""


def main(argv: Sequence[str], find: Find = lambda run, _: run) -> int:
    """Print the plan and return 0. Raise `InputError` (exit 2) if there is no run, or the run measured too little."""
    given = _parser().parse_args(argv)
    for name, most in (("max_data_hosts", 100), ("epochs", 10**9)):
        if getattr(given, name) is not None and not 1 <= getattr(given, name) <= most:
            raise InputError(f"--{name} is {str(getattr(given, name))[:20]}; expected 1 to {most:,}")
    for name in ("budget_usd", "max_hours"):
        if getattr(given, name) is not None and not 0 < getattr(given, name) < math.inf:
            raise InputError(f"--{name} is {getattr(given, name)}; expected a number above 0")
    table = read_instances(given.prices).with_prices(given.price or ())
    folder = find(given.run, given.region)
    summary = read_summary(folder)
    stands_for = parse_stands_for(given.stands_for or (), table)
    if DATA_GROUP in stands_for:
        raise InputError(f"--as {DATA_GROUP}=…: use --as for dnn hosts, and --data_instance_type for data hosts")
    run = measured(summary, table, stands_for.get(DNN_GROUP))
    if given.data_instance_type and not run.trainer_type:
        raise InputError(
            "--data_instance_type: the dnn hosts' type is not known; give --as TYPE, or a --prices table that has it"
        )
    if given.epochs and not run.steps_per_epoch:
        raise InputError(f"{summary['job_name']} finished no epoch, so --epochs cannot be planned; leave --epochs out")
    types = _candidates(table, given.data_instance_type) if run.trainer_type else []
    found = options(run, types, given.max_data_hosts, like_cpus=_simulated_cpus(summary))
    samples = run.work.batch * (given.epochs * run.steps_per_epoch if given.epochs else run.steps)
    limit = run.work.computing_limit
    advice = advise(found, samples, given.budget_usd, given.max_hours, run.alone_waits, limit)
    if given.plot:
        from headrace.report.plots import plot_plan

        plot_plan(run, found, [each.data_type for each in advice.shown], given.plot)
    if given.json:
        looked = {"first": look_at(folder, summary)} if given.lint else {}
        print(json.dumps({**_as_json(run, advice, found), **looked}, indent=2))
    else:
        print(told(summary["job_name"], run, advice, table.dated))
        if given.epochs or given.budget_usd or given.max_hours:
            print(f"\n{told_whole(advice.choice, samples)}")
        if given.lint:
            print("\nrunning headrace lint: changes to the script may be cheaper than hosts …", flush=True)
            found_first = [f"  {line}" for line in look_at(folder, summary)]
            print("\n".join(["first:", *found_first] if found_first else ["nothing was found"]))
    return 0


def told(name: str, run: Measured, advice: Advice, prices: str) -> str:
    """Return the plan as text."""
    work, own = run.work, run.step_s
    on_wire = f"{work.sample_bytes / 1000:,.1f} kB" if work.sample_bytes else "not known"
    lines = [
        f"{name}: {work.batch} samples a step, {own * 1000:.1f} ms a step, ideal {work.ideal_step_s * 1000:.1f} ms: "
        f"{max(1 - work.ideal_step_s / own, 0):.0%} of the time waiting for data",
        f"  CPU time per sample: {work.make_cpu_s * 1e3:.3f} ms to make it, {work.compute_cpu_s * 1e3:.3f} ms for the "
        f"model's own work; size on the network: {on_wire}",
    ]
    if run.own_step_s:
        lines.append(f"  check: the plan's formulas predict {run.own_step_s * 1000:.1f} ms a step for this run")
    lines.append("")
    rows = [_row(option, advice, work.batch * run.steps_per_epoch) for option in advice.shown]
    lines += [as_table([HEAD, *rows]), ""]
    if unexplained := unexplained_s(run):
        lines.append(
            f"A step of this run took {unexplained * 1000:.0f} ms longer than its processors and network need. First "
            "find the cause: disks or S3, other programs on the machine, or a pipeline that keeps few processors busy "
            "(see num_parallel_calls, num_workers and --lint). Then plan from another run. The advice below ignores "
            "this extra time."
        )
    if contradicts_itself(run):
        lines.append(
            f"From the CPU time, the formulas predict steps of {(run.least_step_s or 0.0) * 1000:.1f} ms for this run, "
            f"but its steps took {own * 1000:.1f} ms. So the CPU time includes work outside the steps, such as the "
            "start of a short run. The advice below promises too much. Plan from a longer run."
        )
    lines += advice.lines
    lines += [f"  start_job.py {advice.choice.flags(run)}", ""]
    lines += ["assumed:", *(f"  {note}" for note in run.notes)]
    if run.outside_share > UNTOLD_UNTIL:
        lines.append(
            f"  {run.outside_share:.0%} of the run's training time went to evaluations, checkpoints and the like: "
            "hours, prices and limits here leave this time out"
        )
    if run.trainer_type and run.trainer_type.usd_per_hour is None:
        kind = run.trainer_type.name
        lines.append(f"  {kind} has no price in the table, so this plan has no prices; give --price {kind}=USD")
    elif run.trainer_type:
        lines.append(f"  {prices}, storage not counted")
    elif run.is_simulated:
        lines.append("  the run was simulated, so hosts here have no price; give the dnn hosts' type with --as")
    else:
        lines.append("  the dnn hosts' instance type is not in the table, so this plan has no prices; see --prices")
    return "\n".join(lines)


def told_whole(option: Option, samples: float) -> str:
    """Return the samples, hours and dollars of the whole planned training, as text."""
    cost = option.cost_usd(samples)
    price = "" if cost is None else f", ${usd(cost)}"
    return f"in all: {samples:,.0f} samples in {option.hours(samples):,.3g} h{price}"


def unexplained_s(run: Measured) -> float:
    """Return the seconds by which a step exceeds its prediction; 0 if below `UNEXPLAINED_FROM` or not predicted."""
    extra = run.step_s - run.own_step_s if run.own_step_s else 0.0
    return 0.0 if extra < UNEXPLAINED_FROM * run.step_s else extra


def contradicts_itself(run: Measured) -> bool:
    """Return whether the measured steps were much shorter than their measured CPU time allows."""
    return bool(run.least_step_s) and (run.least_step_s or 0.0) * (1 - UNEXPLAINED_FROM) > run.step_s


def _row(option: Option, advice: Advice, epoch: float) -> list[str]:
    hosts = f"{option.data_hosts} × {option.data_type or 'host'}" if option.data_hosts else "-"
    cost = option.cost_usd(epoch) if epoch else None
    return [
        advice.marks(option), WHO_MAKES[option.placement], hosts, f"{option.prediction.step_s * 1000:.1f} ms",
        f"{option.input_bound_share:.0%}", option.prediction.limit, f"{option.samples_per_s:,.0f}",
        usd(option.usd_per_hour), usd(option.usd_per_million), usd(cost),
    ]  # fmt: skip


def _as_json(run: Measured, advice: Advice, found: Sequence[Option]) -> dict[str, Any]:
    """Return the plan and all options as JSON values, in seconds, dollars and samples."""

    def option(each: Option) -> dict[str, Any]:
        return {**asdict(each), "usd_per_million": each.usd_per_million, "flags": each.flags(run)}

    return {
        "workload": asdict(run.work),
        "choice": option(advice.choice),
        "cheapest": option(advice.cheapest),
        "fastest": option(advice.fastest),
        "flags": advice.choice.flags(run),
        "advice": advice.lines,
        "unexplained_s": unexplained_s(run),
        "contradicts_itself": contradicts_itself(run),
        "assumed": run.notes,
        "options": [option(each) for each in found],
    }


def _candidates(table: InstanceTable, names: Sequence[str] | None) -> list[InstanceType]:
    if not names:
        return [kind for kind in table.types.values() if not kind.gpus and kind.usd_per_hour is not None]
    unknown = [name for name in names if table.get(name) is None]
    if unknown:
        raise InputError(f"--data_instance_type {unknown[0]}: the price table lacks it; add it with --prices")
    if free := [name for name in names if table.types[name].usd_per_hour is None]:
        raise InputError(f"--data_instance_type {free[0]}: the table has no price for it; give --price {free[0]}=USD")
    return [table.types[name] for name in names]


def _simulated_cpus(summary: dict[str, Any]) -> float:
    """Return the number of CPUs of a data host, or of a dnn host if the run had no data hosts."""
    by_group = {host["group"]: host["cpus"] for host in summary["hosts"].values()}
    return float(by_group.get("data_group") or max(by_group.values()))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="headrace plan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or the name of a job on SageMaker")
    parser.add_argument("--region", metavar="NAME", help="region of the SageMaker job, if RUN is a job's name")
    parser.add_argument(
        "--as",
        dest="stands_for",
        action="append",
        metavar="TYPE",
        help="for a simulated run: the instance type to assume for its dnn hosts",
    )
    parser.add_argument(
        "--data_instance_type",
        action="append",
        metavar="TYPE",
        help="candidate type for data hosts; repeatable (default: every type without GPU)",
    )
    parser.add_argument(
        "--max_data_hosts",
        type=int,
        default=MOST_DATA_HOSTS,
        metavar="N",
        help="largest number of data hosts to consider, 1 to 100 (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of the planned training (default: the run's)")
    parser.add_argument(
        "--budget_usd",
        type=float,
        metavar="USD",
        help="limit on the training's cost; the fastest job within this budget is chosen",
    )
    parser.add_argument(
        "--max_hours",
        type=float,
        metavar="H",
        help="limit on the training's hours; the cheapest job within it (with --budget_usd: the fastest) is chosen",
    )
    parser.add_argument("--price", action="append", metavar="TYPE=USD", help="your price per hour of TYPE; repeatable")
    parser.add_argument("--prices", type=Path, metavar="CSV", help="your price table with the columns of instances.csv")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw step time by number of data hosts")
    parser.add_argument("--lint", action="store_true", help="also list script changes; make them before you rent hosts")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
