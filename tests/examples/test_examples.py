"""Every script in code/examples learns on two ranks, with and without data hosts; both ranks end with equal weights.

`HEADRACE_MODES=service` leaves out the runs without data hosts, `HEADRACE_SEEDS=3` runs each with
three seeds, `HEADRACE_EVERY=2` takes every second script.
"""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT, copy_source, run_job

EXAMPLES = sorted(path.stem for path in (ROOT / "code" / "examples").glob("*.py") if path.stem != "digits")
EXAMPLES = EXAMPLES[:: int(os.environ.get("HEADRACE_EVERY", "1"))]
SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "1")))
FLAGS = {"service": ["--is_hetero"], "local": ["--no-is_hetero"]}
MODES = os.environ.get("HEADRACE_MODES", "service local").split()
LEARNED = {"tabular": 0.85, "gradient_accumulation": 0.85}
NOISE = 0.06
CHECK = """
import numpy as np

flat = np.concatenate([np.ravel(np.asarray(each.value)) for each in model.weights]).astype("float32")
everyones = np.asarray(hvd.allgather(tf_.constant(flat[None])))
assert (everyones == everyones[0]).all()
print(f"weights identical on {hvd.size()} ranks")
"""


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_samples.py"), str(folder)], check=True)
    return folder


def accuracy_of(name, mode, seed, tmp_path, samples):
    source = copy_source(tmp_path / f"source-{mode}-{seed}")
    script = source / "examples" / f"{name}.py"
    seeded = f"import keras as keras_, tensorflow as tf_\nkeras_.utils.set_random_seed({seed})\n"
    script.write_text(seeded + script.read_text() + CHECK)
    run = run_job(
        tmp_path,
        *FLAGS[mode],
        f"--source_dir={source}",
        f"--training_script=examples/{name}.py",
        f"--channel=training={samples}",
    )
    assert run.code == 0, run.output[-4000:]
    assert run.output.count("weights identical on 2 ranks") == 2
    summary = run.summary
    assert summary["steps"] > 0 and summary["samples_per_s"] > 0
    metrics = summary["final_metrics"]
    return metrics.get("val_accuracy", metrics.get("accuracy"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns_the_same_in_both_modes(name, tmp_path, samples):
    found = {mode: [accuracy_of(name, mode, seed, tmp_path, samples) for seed in SEEDS] for mode in MODES}
    print(name, found)
    for mode, accuracies in found.items():
        assert min(accuracies) > LEARNED.get(name, 0.9), (mode, accuracies)
    means = [sum(accuracies) / len(accuracies) for accuracies in found.values()]
    assert max(means) - min(means) < NOISE, found
