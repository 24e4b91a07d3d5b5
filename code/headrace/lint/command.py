"""`headrace lint SCRIPT`: what costs most in the tf.data pipeline of a training script, and its fix."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.terminal.parser import OneLineParser

if TYPE_CHECKING:
    from headrace.lint.findings import Finding


def main(argv: Sequence[str]) -> int:
    """Print the findings; return 0 if there are none, else 1. Wrong arguments and failing scripts raise (exit 2)."""
    parser = OneLineParser(prog="headrace lint", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    parser.add_argument("--traceback", action="store_true", help="if the script raises, print the full traceback")
    parser.add_argument("script", type=Path, help="training script; it runs until its training would begin")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    given = parser.parse_args(argv)
    if not given.script.is_file():
        parser.error(f"there is no script {given.script}; check the path")
    # Before TensorFlow is loaded: pipelines need no GPU, and TensorFlow's log is no part of the findings.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from headrace.lint.examine import examine
    from headrace.lint.script_run import run_to_training

    captured = run_to_training(given.script, given.arguments, given.traceback)
    findings = examine(captured)
    if given.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        print(told(findings, given.script))
    return 1 if findings else 0


def told(findings: Sequence[Finding], script: Path) -> str:
    """Return the findings as text."""
    lines = []
    for each in findings:
        times = f"{each.gain or 0:.1f}".removesuffix(".0")
        gain = f"{times}× {each.gain_of}" if each.gain else each.gain_of
        lines += [f"{each.where}  {each.rule}: {gain}" + (" (estimated)" if each.is_estimate else "")]
        lines += [f"    cost: {each.cost}", f"    fix: {each.fix}"]
    count = {0: "nothing found", 1: "1 finding"}.get(len(findings), f"{len(findings)} findings")
    return "\n".join([*lines, f"{script}: {count}"])
