"""Use `headrace lint` to find what to change in a local run's script. A change may be cheaper than more hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import RunPaths
from headrace.cluster.topology import DATA_GROUP
from headrace.errors import InputError, SetupError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.job.settings import HYPERPARAMETERS
from headrace.job.spec import as_flag

LIMIT_S = 300.0


def look_at(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    """Return what to change in the run's script, the largest gain first. This executes the script until it trains.

    Raises:
        InputError: the folder lacks the script that the hosts ran, or lint does not know its framework.
        SetupError: `headrace lint` fails here, or takes too long.
    """
    leader = next(name for name, host in summary["hosts"].items() if host["group"] != DATA_GROUP)
    paths = RunPaths(folder).host(leader)
    try:
        given = json.loads(paths.hyperparameters.read_text(encoding="utf-8"))
        values = {name: str(json.loads(value)) for name, value in given.items() if not name.startswith("sagemaker_")}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"--lint is for runs on this machine, and this one cannot be read ({error}); leave out --lint"
        ) from error
    script = paths.code_dir / values.get("training_script", "train_dnn.py")
    if not FRAMEWORKS[values.get("framework", DEFAULT.name)].has_lint:
        linted = " or ".join(each.title for each in FRAMEWORKS.values() if each.has_lint)
        raise InputError(f"--lint is for scripts of {linted}; leave --lint out")
    arguments = [text for pair in values.items() if pair[0] not in HYPERPARAMETERS for text in as_flag(*pair)]
    channels = paths.channel_dir.iterdir() if paths.channel_dir.is_dir() else ()
    environ = os.environ | {f"SM_CHANNEL_{channel.name.upper()}": str(channel) for channel in channels}
    command = [sys.executable, "-m", "headrace", "lint", "--json", str(script), *arguments]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        found = json.loads(done.stdout[done.stdout.index("[") :])
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"headrace lint did not finish {script} in {LIMIT_S:.0f} s; leave --lint out") from error
    except ValueError as error:
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise SetupError(f"headrace lint cannot examine {script}: {said[-1]}") from error
    found.sort(key=lambda each: -(each["gain"] or 0.0))
    return [f"{each['where']}  {each['rule']}: {_gain(each)}; {each['fix']}" for each in found]


def _gain(finding: Mapping[str, Any]) -> str:
    times = f"{finding['gain']:.1f}× " if finding["gain"] else ""
    return times + str(finding["gain_of"]) + (" (estimated)" if finding["is_estimate"] else "")
