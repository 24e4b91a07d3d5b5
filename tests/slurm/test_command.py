"""`headrace submit --to slurm` works as users call it: both frameworks train, exit status and Ctrl-C are right."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest
from headrace.__main__ import main as headrace

from tests.slurm.jobs import PLACES, command
from tests.support import JOB_TIMEOUT_S, ROOT, WAIT_S, copy_source

TORCH_PYTHON = ROOT / ".venv-torch" / "bin" / "python"


def run(cluster, tmp_path, *flags, **popen):
    """Run the command to its end; return its exit status, its output, and the summary or None."""
    process = command(cluster, f"--output_dir={tmp_path}", "--job_name=job", *PLACES, *flags, **popen)
    output, _ = process.communicate(timeout=JOB_TIMEOUT_S)
    path = tmp_path / "job" / "summary.json"
    return process.returncode, output, json.loads(path.read_text()) if path.exists() else None


def made_by(summary, host):
    """Return the number of batches that ranks received from a data node."""
    return summary["workers"][f"{host}/worker"]["batches"]


def test_tensorflow_trains_with_batches_from_data_nodes(cluster, tmp_path, capsys):
    source = copy_source(tmp_path / "source", ROOT / "tests" / "e2e" / "scripts" / "tabular.py")
    code, output, summary = run(
        cluster,
        tmp_path,
        f"--source_dir={source}",
        "--training_script=tabular.py",
        "--num_of_data_instances=2",
        "--processes_per_host=2",
        "--hyperparameter=hidden=24",
        "--epochs=2",
        "--local_workers=off",
    )
    assert code == 0, output[-4000:]  # the script has compared the weights of both ranks
    assert summary["world_size"] == 2 and summary["steps"] > 0
    assert made_by(summary, "cpu1") + made_by(summary, "cpu2") > 0  # one host may make all: the batches are few
    assert re.search(r"^gpu1 dnn_group \| .* rank0 ", output, re.M) and "job succeeded" in output
    assert not cluster.jobs() and not cluster.left_behind()
    assert not (tmp_path / "job" / "secret").exists()
    assert headrace(["report", str(tmp_path / "job")]) == 0 and headrace(["plan", str(tmp_path / "job")]) == 0
    told = capsys.readouterr().out
    assert "host-hours" in told and not re.search(r"\$\d", told)


@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="no .venv-torch: make setup-torch")
def test_pytorch_trains_on_two_nodes_with_a_channel_and_batches_from_data_nodes(cluster, tmp_path):
    digits = tmp_path / "digits"
    subprocess.run([TORCH_PYTHON, str(ROOT / "tools" / "make_digits_npz.py"), str(digits)], check=True)
    source = copy_source(tmp_path / "source", ROOT / "tests" / "torch" / "scripts" / "check_torch.py")
    code, output, summary = run(
        cluster,
        tmp_path,
        f"--source_dir={source}",
        "--training_script=check_torch.py",
        "--framework=pytorch",
        "--num_of_data_instances=2",
        "--num_of_dnn_instances=2",
        "--processes_per_host=1",
        "--epochs=1",
        "--hyperparameter=model=small_cnn",
        f"--channel=training={digits}",
        "--local_workers=off",
        python=TORCH_PYTHON,
    )
    assert code == 0, output[-4000:]
    weights = dict(re.findall(r"weights of rank (\d): (\S+)", output))
    assert set(weights) == {"0", "1"} and len(set(weights.values())) == 1
    assert summary["world_size"] == 2 and summary["hosts"]["gpu2"]["group"] == "dnn_group"
    assert made_by(summary, "cpu1") + made_by(summary, "cpu2") > 0  # one host may make all: the batches are few
    assert not cluster.jobs() and not cluster.left_behind()


def homogeneous(tmp_path, text):
    """Write a training script. Return the flags of a job that runs this script on one node, without data hosts."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train_dnn.py").write_text(text)
    return [f"--source_dir={tmp_path / 'source'}", "--no-is_hetero", f"--output_dir={tmp_path}", "--job_name=job"]


def test_a_script_that_raises_fails_the_command_with_its_words(cluster, tmp_path):
    flags = homogeneous(tmp_path, "raise ValueError('no such digits')\n")
    code, output, summary = run(cluster, tmp_path, *flags, "--dnn_gres=gpu:2")
    assert code == 1 and summary["outcome"] == "failed"
    assert "no such digits" in summary["root_cause"]["message"] and "root cause" in output
    assert summary["hosts"]["gpu1"]["instance_type"] == "gpu"
    assert not cluster.jobs()


def test_ctrl_c_asks_and_then_cancels(cluster, tmp_path):
    flags = homogeneous(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    terminal, end = pty.openpty()

    def on_a_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore this signal
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "submit", "--to", "slurm", *flags, *PLACES],
        stdin=end,
        stdout=end,
        stderr=end,
        env=os.environ | cluster.environ | {"PYTHONPATH": str(ROOT / "code"), "TERM": "dumb"},
        start_new_session=True,
        preexec_fn=on_a_terminal,  # noqa: PLW1509
    )
    os.close(end)
    shown = ""

    def read_until(word, timeout_s=WAIT_S):
        nonlocal shown
        deadline = time.monotonic() + timeout_s
        while word not in shown:
            assert time.monotonic() < deadline, (word, shown)
            if select.select([terminal], [], [], 1)[0]:
                try:
                    shown += os.read(terminal, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    assert word in shown, (word, shown)

    read_until("begun")
    os.write(terminal, b"\x03")
    read_until("[y/N]")
    os.write(terminal, b"y\n")
    read_until("CANCELLED")
    read_until("was stopped by SIGTERM")
    assert process.wait(WAIT_S) == 1
    os.close(terminal)
    assert not cluster.jobs() and not cluster.left_behind()
