"""`headrace lint SCRIPT`: what costs most in the tf.data pipeline of a training script, and its fix."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.lint import DATA_HOST_CORES
from headrace.terminal.parser import OneLineParser
from headrace.terminal.tables import Table

if TYPE_CHECKING:
    from headrace.lint.findings import Finding
    from headrace.lint.stages import StageCost


def main(argv: Sequence[str]) -> int:
    """0: nothing found; 1: findings; 2 (raised): the arguments are wrong, or the script cannot be run."""
    parser = OneLineParser(prog="headrace lint", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="a list of findings, for programs")
    parser.add_argument("--stages", action="store_true", help="also the processor time of each stage of the pipeline")
    parser.add_argument("--no-measure", action="store_true", help="look only: run no part of the pipeline")
    parser.add_argument("--cores", type=int, default=DATA_HOST_CORES, help="of a data host (default: %(default)s)")
    parser.add_argument("--traceback", action="store_true", help="where the script raised, in full")
    parser.add_argument("script", type=Path, help="runs up to where it would train")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    given = parser.parse_args(argv)
    if given.cores < 1:
        parser.error(f"--cores is {given.cores}; expected 1 or more")
    if given.stages and given.no_measure:
        parser.error("--stages measures, and --no-measure does not")
    if not given.script.is_file():
        parser.error(f"there is no script {given.script}")
    # Before TensorFlow is loaded: pipelines run on processors, and its remarks are not ours.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from headrace.lint.examine import examine, where_time_goes
    from headrace.lint.script_run import run_to_training

    captured = run_to_training(given.script, given.arguments, given.traceback)
    findings = examine(captured, measured=not given.no_measure, cores=given.cores)
    stages = where_time_goes(captured) if given.stages else []
    if given.json:
        records = [asdict(finding) for finding in findings]
        costs = {"findings": records, "stages": [asdict(stage) for stage in stages]}
        print(json.dumps(costs if given.stages else records, indent=2, ensure_ascii=False))
    else:
        if stages:
            print(told_stages(stages), end="\n\n")
        print(told(findings, given.script))
    return 1 if findings else 0


def told_stages(stages: Sequence[StageCost]) -> str:
    """Where processor time goes, as a table."""
    table = Table("stage", "CPU µs a sample", "share")
    for each in stages:
        table.add(each.where, f"{each.cpu_us:,.1f}", f"{each.share:.0%}")
    return table.text()


def told(findings: Sequence[Finding], script: Path) -> str:
    """The findings as text."""
    lines = []
    for each in findings:
        times = f"{each.gain or 0:.1f}".removesuffix(".0")
        gain = f"{times}× {each.gain_of}" if each.gain else f"gain {each.gain_of}"
        lines += [f"{each.where}  {each.rule}: {gain}" + ("" if each.measured or not each.gain else " (estimated)")]
        lines += [f"    cost: {each.cost}", f"    fix: {each.fix}"]
    count = {0: "nothing found", 1: "1 finding"}.get(len(findings), f"{len(findings)} findings")
    return "\n".join([*lines, f"{script}: {count}"])
