"""The commands and scripts of the guides work when a reader follows them."""

import json
import re
import subprocess

import pytest

from tests.documents import DOCUMENTS, commands_of, console_lines, fences
from tests.support import ROOT

JOB = "headrace run --num_of_data_instances 1 --training_script train.py --job_name mine"
IN_THE_CLOUD = [
    command
    for document in DOCUMENTS
    for command in commands_of(document)
    if command.after("start_job.py", "headrace") is not None
    and "--no-is_cloud_job" not in command.flags
    and not {"run", "slurm"} & set(command.words)
    and {"--role", "--dry_run", "--channel"} & command.flags
]


def guide(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def with_diff(folder, kind):
    """Write the guide's script of this kind as train.py, and apply the guide's diff to it."""
    text = guide("own-script.md")
    (script,), (diff,) = fences(text, "python", kind), fences(text, "diff", kind)
    (folder / "train.py").write_text(script)
    patch = f"--- train.py\n+++ train.py\n{diff}"
    subprocess.run(["patch", "-p0", "--fuzz=0"], cwd=folder, input=patch, text=True, check=True)


@pytest.mark.parametrize("kind", ["keras", "horovod"])
def test_a_script_with_the_guides_diff_trains_with_a_data_host(kind, project, shell):
    with_diff(project, kind)
    shell(JOB)
    summary = json.loads((project / "runs/mine/summary.json").read_text())
    assert summary["outcome"] == "succeeded" and summary["tf_data_mode"] == "service"
    # Two ranks share two epochs of 1024 samples, in batches of 32. The rank with fewer samples repeats some of them.
    assert summary["world_size"] == 2 and 32 <= summary["steps"] <= 48


def test_the_keras_diff_has_five_lines():
    (diff,) = fences(guide("own-script.md"), "diff", "keras")
    assert len(re.findall(r"^\+", diff, re.MULTILINE)) == 5


def test_hello_tells_where_it_runs(project, shell):
    text = guide("groups.md")
    (script,) = fences(text, "python", "hello.py")
    assert len(script.splitlines()) <= 10
    (project / "hello.py").write_text(script)
    shell(*console_lines(text))
    log = (project / "runs/hello/algo-3.log").read_text()
    expected = next(block for block in fences(text, "") if block.startswith("I am"))
    for line in expected.splitlines():
        assert line in log
    assert "rank 1 of 2" in log


def test_a_spot_job_is_rehearsed(project, shell):
    new, first, *rest = (line for line in console_lines(guide("spot.md")) if "s3://" not in line)
    job = re.fullmatch(r"timeout --foreground --signal=INT 30 (.*) \|\| true", first)[1]
    # Stop only after some steps, however slow this machine is. Bash keeps Ctrl-C from background processes.
    until = "until grep -qs event=step runs/first/*.log; do sleep 0.2; done"
    lines = [new, f"{job} & job=$!", until, "kill -TERM $job", "wait $job || true", *rest]
    shell(*lines[: -len(rest)])
    output = shell(*rest)
    resumed = json.loads((project / "runs/second/summary.json").read_text())
    assert resumed["outcome"] == "succeeded"
    assert re.search(r"event=resumed .*epoch=", output)


def test_a_run_is_reported_and_planned_with(project, shell):
    start, *rest = console_lines(guide("instances.md"))
    assert "--no-is_hetero" in start
    shell(
        "headrace new .",
        "headrace run --no-is_hetero --job_name alone --epochs 1 --steps_per_epoch 20 --hyperparameter model=small_cnn",
        *rest,
    )
    assert (project / "runs/alone/report.html").is_file()


@pytest.mark.parametrize("command", IN_THE_CLOUD, ids=lambda command: f"{command.where}: {command.text[:70]}")
def test_a_command_that_submits_makes_a_valid_request(command, project, shell):
    words = [word for word in command.words if word != "..."]
    (project / "train_dnn.py").write_text("")
    (project / "train_torch.py").write_text("")
    start = next(at for at, word in enumerate(words) if word in ("submit", "start", "start_job.py"))
    rest = [word for word in words[start + 1 :] if word != "--dry_run"]
    request = shell("headrace submit --dry_run " + " ".join(f"'{word}'" for word in rest), errors=subprocess.PIPE)
    assert json.loads(request)["TrainingJobName"]
