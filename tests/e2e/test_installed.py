"""headrace works when it is installed from its wheel, in an empty folder, without files of the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import JOB_TIMEOUT_S, ROOT, copy_source, processes_of


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """An empty folder. Beside it is a virtual environment, with headrace installed from its wheel. Programs of this
    environment can also import the packages of the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    tree = folder / "tree"  # building leaves files behind
    copy_source(tree / "code")
    shutil.copytree(ROOT / "third_party", tree / "third_party")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q", "--no-deps", "-w", folder, tree]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # The file lent.pth names the folder of the tests' packages, so Python finds these packages. Python does not read
    # the .pth files in that folder, so it does not find the checkout's headrace, which one of them names.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    (wheel,) = folder.glob("headrace-*.whl")
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, f"{wheel}[local,submit]"], check=True)
    shutil.rmtree(tree)
    (folder / "project").mkdir()
    return folder / "project"


def run(project, *command, expected=0):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "HEADRACE_", "PYTHON"))}
    programs = f"{project.parent}/venv/bin:{sysconfig.get_path('scripts')}:{environ['PATH']}"
    result = subprocess.run(
        command,
        cwd=project,
        env=environ | {"PATH": programs, "AWS_DEFAULT_REGION": "eu-west-1"},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == expected, result.stdout[-3000:] + result.stderr[-3000:]
    return result


def test_the_wheels_own_headrace_is_the_one_that_runs(project):
    where = run(project, "python", "-c", "import headrace, sys; print(headrace.__file__)").stdout
    assert Path(where.strip()).is_relative_to(project.parent / "venv")


def test_from_an_empty_folder_to_a_job_here_and_a_request(project):
    run(project, "headrace", "setup")
    run(project, "headrace", "new", ".")
    assert "exists already" in run(project, "headrace", "new", ".", expected=2).stderr
    assert "--framework pytorch" in run(project, "headrace", "new", "torches", "--framework=pytorch").stderr
    assert [path.name for path in (project / "torches").iterdir()] == ["train_torch.py"]
    script = project / "train.py"
    (project / "train_dnn.py").rename(script)
    (project / "mine.py").write_text("WORD = 'of mine'\n")
    script.write_text(script.read_text() + "\nimport mine\n\nprint('a module', mine.WORD)\n")
    (project / "requirements.txt").write_text("tqdm\n")
    run(
        project,
        "headrace",
        "run",
        "--job_name=first",
        "--training_script=train.py",
        "--num_of_data_instances=1",
        "--processes_per_host=2",
        "--batch_size=16",
        "--epochs=1",
        "--steps_per_epoch=4",
        "--hyperparameter=model=small_cnn",
    )
    folder = project / "runs" / "first"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["tf_data_mode"], summary["steps"]) == ("succeeded", "service", 4)
    assert (folder / "algo-2.log").read_text().count("a module of mine") == 2
    code = folder / "algo-1" / "code"
    assert {"launcher.py", "train_data.py", "headrace", "train.py", "mine.py"} <= {path.name for path in code.iterdir()}
    assert not (code / "runs").exists()
    said = (code / "requirements.txt").read_text()
    assert "tqdm" in said and "-c headrace/constraints.txt" in said
    assert (code / "headrace" / "constraints.txt").is_file()
    assert processes_of("first") == []
    request = json.loads(
        run(
            project,
            "headrace",
            "submit",
            "--dry_run",
            "--training_script=train.py",
            "--role=arn:aws:iam::123456789012:role/R",
        ).stdout
    )
    assert request["Environment"]["HEADRACE_VERSION"]


@pytest.mark.parametrize("name", ["launcher.py", "train_data.py", "headrace"])
def test_a_file_that_would_take_the_place_of_one_of_headraces_is_refused_by_name(project, name):
    folder = project / f"shadow-{name}"
    folder.mkdir()
    (folder / "train_dnn.py").touch()
    if name == "headrace":
        (folder / name).mkdir()
        (folder / name / "data.py").touch()
    else:
        (folder / name).touch()
    result = run(project, "headrace", "run", f"--source_dir={folder}", expected=2)
    assert f"holds {name}" in result.stderr
    assert result.stderr.count("\n") == 1
