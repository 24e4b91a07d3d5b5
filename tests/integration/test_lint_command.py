"""The command `headrace lint` runs a script up to its training, prints findings, and sets its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.__main__ import main
from headrace.rank.context import EMPTY_REPORT

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, keras, tensorflow as tf
from headrace.tensorflow import data
train = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 32, 32, 3], tf.uint8)).repeat()
def scale(x):
    return tf.cast(x, tf.float32) / 255
train = train.batch(8)
train = train.map(scale{parallel})
print("in the script", sys.argv[1:])
{distribute}
{train}
open("trained", "w")
"""
DISTRIBUTE = "train = data.distribute(train).prefetch(2)"
FIT = "keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten()]).fit(train)"


@pytest.fixture
def lint(tmp_path, monkeypatch, capfd):
    """Function that runs the command on a script, and returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("OPAL_PREFIX", "unused: no script here starts MPI")

    def run(text, *arguments, before=()):
        (tmp_path / "mine.py").write_text(text)
        code = main(["lint", *before, "mine.py", *arguments])
        said = capfd.readouterr()
        return code, said.out, said.err.replace(str(tmp_path), "")

    return run


def filled(parallel=", tf.data.AUTOTUNE", distribute=DISTRIBUTE, train=FIT):
    return SCRIPT.format(parallel=parallel, distribute=distribute, train=train)


LOOPS = {
    "fit": FIT,
    "a loop of its own": "for batch in train: pass",
    "a loop by number": "batches = iter(train)\nfor _ in range(3): next(batches)",
    "enumerate": "for number, batch in enumerate(train): pass",
    "a function of an iterator": "tf.function(lambda batches: next(batches))(iter(train))",
}


@pytest.mark.parametrize("train", LOOPS.values(), ids=LOOPS)
def test_a_script_is_run_up_to_its_training_with_its_arguments(lint, tmp_path, train):
    code, out, err = lint(filled(train=train), "--epochs", "3")
    assert code == 1
    assert "mine.py:10: distribute()  wide-wire: 4× fewer bytes on the wire" in out
    assert out.endswith("mine.py: 1 finding\n")
    assert "in the script ['--epochs', '3']" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    "look",
    ["print(next(iter(train)).shape)", "for batch in train.take(1): print(batch.shape)"],
    ids=["next", "take(1)"],
)
def test_a_look_at_a_batch_is_no_training(lint, look):
    first = f"train = data.distribute(train)\n{look}\ntrain = train.prefetch(2)"
    _, out, err = lint(filled(distribute=first))
    assert "(8, 32, 32, 3)" in err
    assert "wide-wire" in out and "no-prefetch" not in out


def test_batches_that_are_copied_to_a_gpu_ahead_are_prefetched(lint):
    to_device = "train = data.prefetch_to_device(data.distribute(train))"
    assert "no-prefetch" not in lint(filled(distribute=to_device))[1]


def test_json_holds_findings_only(lint):
    past_python = "import os\nos.write(1, b'from a library')\nos.system('echo from a program')\n"
    code, out, _ = lint(past_python + filled(), before=("--json",))
    assert code == 1
    assert [finding["rule"] for finding in json.loads(out)] == ["wide-wire"]


def test_a_sound_script_exits_with_0(lint):
    text = filled(distribute="train = data.distribute(train, sharding='off').prefetch(2)").replace(
        "train = train.map", "# "
    )
    assert lint(text)[:2] == (0, "mine.py: nothing found\n")


UNUSABLE = {
    "raises": (filled(train="raise ValueError('no\\nluck')"), "mine.py:11: ValueError: no luck"),
    "is no Python": ("x = = 1", "mine.py:1: SyntaxError: invalid syntax"),
    "never distributes": (filled(distribute=""), "mine.py came to fit without calling"),
    "ends": ("import keras", "mine.py ended without calling headrace.tensorflow.data.distribute"),
    "exits": ("raise SystemExit(3)", "mine.py exited with code 3 before training"),
    "misuses distribute": (
        filled(distribute="data.distribute(train, sharding='random')"),
        "mine.py:10: InputError: sharding is 'random'; expected one of dynamic, off",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_script_that_cannot_be_looked_at_is_exit_2_and_one_line(lint, name):
    text, reason = UNUSABLE[name]
    code, out, err = lint(text)
    assert (code, out) == (2, "")
    assert f"headrace: error: {reason}" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_the_traceback_is_there_for_those_who_ask(lint):
    _, _, err = lint(UNUSABLE["raises"][0], before=("--traceback",))
    assert "Traceback (most recent call last)" in err


def test_a_missing_script_is_exit_2(capsys):
    assert main(["lint", "/nowhere/mine.py"]) == 2
    assert "no script /nowhere/mine.py" in capsys.readouterr().err


def test_the_training_script_of_the_project_has_nothing_to_mend_and_writes_nothing(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "headrace", "lint", str(ROOT / "code" / "train_dnn.py"), "--model", "small_cnn"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "code"), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (
        0,
        [f"{ROOT / 'code' / 'train_dnn.py'}: nothing found"],
    ), result.stderr[-2000:]
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_plan_says_what_is_cheaper_than_hosts_from_the_runs_own_script_and_arguments(tmp_path, capsys):
    host = {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96}
    summary = EMPTY_REPORT | {
        "job_name": "run", "outcome": "succeeded", "simulated": True, "world_size": 1, "global_batch_size": 8,
        "steps": 100, "steps_per_epoch": 100, "step_time_ms": {"median": 20.0, "mean": 20.0, "p90": 20.0},
        "ideal_step_time_ms": 10.0, "rank_cpu_s_per_step": 0.5, "sample_bytes": 12288.0, "hosts": {"algo-1": host},
    }  # fmt: skip
    run = tmp_path / "run"
    for folder in ("algo-1/code", "algo-1/input/config", "algo-1/input/data/training"):
        (run / folder).mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps(summary))
    as_in_the_job = (
        "import os, sys\nassert sys.argv[1:3] == ['--size', '7']\nos.listdir(os.environ['SM_CHANNEL_TRAINING'])\n"
    )
    (run / "algo-1/code/mine.py").write_text(as_in_the_job + filled())
    given = {"size": '"7"', "training_script": '"mine.py"', "sagemaker_program": '"launcher.py"'}
    (run / "algo-1/input/config/hyperparameters.json").write_text(json.dumps(given))
    assert main(["plan", str(run), "--lint"]) == 0
    said = capsys.readouterr().out
    assert "changes to the script may be cheaper than hosts" in said
    assert "wide-wire: 4.0× fewer bytes on the wire" in said
    (run / "algo-1/code/mine.py").write_text("raise ValueError('no data here')")
    assert main(["plan", str(run), "--lint"]) == 1
    printed = capsys.readouterr()
    assert "headrace lint cannot examine" in printed.err and "batches made by" in printed.out
    (run / "algo-1/input/config/hyperparameters.json").unlink()
    assert main(["plan", str(run), "--lint"]) == 2
    assert "--lint is for runs on this machine" in capsys.readouterr().err
