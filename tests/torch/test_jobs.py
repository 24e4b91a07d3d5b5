"""Whole PyTorch jobs on simulated hosts. Data hosts do not change the training. A job resumes where another stopped."""

import ast
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.faults.breakage import FEED, kill
from tests.support import JOB_TIMEOUT_S, ROOT, finish, run_job, start
from tests.torch.jobs import SCRIPTS, TORCH, needs_namespaces
from tests.victims import Victim


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_digits_npz.py"), str(folder)], check=True)
    return folder


def weights_of(run):
    return dict(re.findall(r"weights of rank (\d): (.+)", run.output))


def losses_of(run):
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


def run_case(name, tmp_path, *flags):
    """Run a job that succeeds. If its name says "loses its feed server", kill algo-2's feed server during training."""
    beside = [] if "--no-is_hetero" in flags else ["--local_workers=off"]
    held, loses = tmp_path / "held", "loses its feed server" in name
    if loses:
        held.touch()
    process, folder = start(tmp_path, *flags, *beside, f"--hyperparameter=held={held}", "--hyperparameter=log_every=1")
    if loses:
        job = Victim(process, folder)
        job.wait_for_steps()
        kill(job, "algo-2", FEED)
        held.unlink()
    run = finish(process, folder)
    assert run.code == 0, run.output[-4000:]
    return run


def test_training_is_the_same_to_the_last_bit_with_any_data_hosts_and_without(tmp_path, source, digits):
    flags = [TORCH, f"--source_dir={source}", "--training_script=check_torch.py", "--hyperparameter=model=small_cnn"]
    flags += [f"--channel=training={digits}", "--epochs=2"]
    cases = {
        "one data host": ["--num_of_data_instances=1"],
        "three data hosts": ["--num_of_data_instances=3"],
        "two data hosts, one loses its feed server": ["--num_of_data_instances=2"],
        "none": ["--no-is_hetero"],
    }
    found = {}
    for name, hosts in cases.items():
        run = run_case(name, tmp_path, *flags, *hosts)
        weights = weights_of(run)
        assert set(weights) == {"0", "1"} and len(set(weights.values())) == 1, weights
        assert run.summary["world_size"] == 2 and run.summary["steps"] == 2 * 22
        found[name] = (weights["0"], losses_of(run))
    assert len({weights for weights, _ in found.values()}) == 1, found
    assert len({tuple(losses) for _, losses in found.values()}) == 1


def test_lines_of_files_are_shared_exactly_and_train_the_same_model_on_any_hosts(tmp_path, source):
    folder = tmp_path / "lines"
    folder.mkdir()
    for number in range(5):
        lines = range(100 * number, 100 * number + 12 + 5 * number)
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    flags = [TORCH, f"--source_dir={source}", "--training_script=lines.py"]
    flags += [f"--channel=training={folder}"]
    cases = {
        "local": ["--no-is_hetero"],
        "two data hosts, one loses its feed server": ["--num_of_data_instances=2"],
    }
    found = {}
    for name, hosts in cases.items():
        run = run_case(name, tmp_path, *flags, *hosts)
        seen = re.findall(r"rank \d epoch (\d): (\d+) steps, (\[.*\])", run.output)
        assert len({(epoch, steps) for epoch, steps, _ in seen}) == 2, "the ranks made different numbers of steps"
        for epoch in "01":
            taken = sorted(line for of, _, lines in seen if of == epoch for line in ast.literal_eval(lines))
            assert taken == [100 * number + line for number in range(5) for line in range(12 + 5 * number)]
        weights = re.findall(r"rank \d: weights (\w+)", run.output)
        assert len(weights) == 2 and len(set(weights)) == 1
        found[name] = weights[0], losses_of(run)
    assert len({repr(each) for each in found.values()}) == 1, found


@pytest.fixture(scope="module")
def standardized(tmp_path_factory):
    """A finished job whose script computes the mean with one loader and trains with another; num_workers is 7."""
    flags = [TORCH, f"--source_dir={SCRIPTS}", "--training_script=standardized.py", "--num_of_data_instances=1"]
    return run_job(tmp_path_factory.mktemp("job"), *flags, "--hyperparameter=num_workers=7", "--local_workers=off")


def test_a_pass_over_the_data_before_training_leaves_the_training_loader_on_data_hosts(standardized):
    assert standardized.code == 0, standardized.output[-4000:]
    assert standardized.output.count("training on data hosts: True, mean 19.5, 3 epochs of 20 samples") == 2
    assert standardized.output.count("later loader on data hosts: False") == 2
    assert standardized.summary["workers"]["algo-1/worker"]["batches"] >= 2 * 5 + 2 * 3 * 5


def test_a_feed_server_uses_its_hosts_processors_whatever_num_workers_says(standardized):
    (ready,) = standardized.events("feed_ready")
    assert int(ready.fields["processes"]) == len(os.sched_getaffinity(0))


def test_the_script_learns_whether_a_feed_server_runs_it(standardized):
    assert "a feed server: True, rank 0 of 1" in standardized.log("algo-1")
    for rank in (0, 1):
        assert f"a feed server: False, rank {rank} of 2" in standardized.output


def test_the_script_runs_without_a_launcher(tmp_path):
    command = [sys.executable, str(ROOT / "code" / "train_torch.py"), "--model=small_cnn", "--epochs=1"]
    subprocess.run([*command, "--examples=64"], cwd=tmp_path, check=True, timeout=JOB_TIMEOUT_S)
    assert (tmp_path / "model" / "model.pt").is_file() and (tmp_path / "output" / "trainer.json").is_file()


def records(folder):
    """Return the epoch and the samples of each step, by rank."""
    lines = {path.name: path.read_text().splitlines() for path in folder.glob("rank*")}
    return {
        name: [(int(each.split()[0]), ast.literal_eval(each.partition(" ")[2])) for each in of]
        for name, of in lines.items()
    }


@needs_namespaces
def test_a_job_that_is_asked_to_stop_goes_on_in_mid_epoch_with_another_number_of_ranks(victim, tmp_path):
    for name in ("before", "after", "kept"):
        (tmp_path / name).mkdir()
    kept = f"--checkpoint_s3_uri={tmp_path / 'kept'}"
    job = victim("--epochs=200", f"--hyperparameter=ledger={tmp_path / 'before'}", kept)
    job.wait_for_steps(10)  # a second epoch
    job.process.send_signal(signal.SIGINT)
    assert finish(job.process, job.folder).code == 1
    newest = max(path.name for path in (tmp_path / "kept").glob("epoch-*"))
    found = re.fullmatch(r"epoch-(\d{4})(?:-step-(\d{6}))?", newest)  # no step: the job stopped at an epoch's end
    epoch, step = map(int, found.groups("0"))

    flags = [f"--epochs={epoch + 1}", "--processes_per_host=3", f"--hyperparameter=ledger={tmp_path / 'after'}"]
    again = victim(*flags, kept, stepping=False)
    run = finish(again.process, again.folder)
    assert run.code == 0, run.output[-3000:]
    assert run.events("resumed")[0].fields["step"] == str(step)
    before = [
        taken
        for rank in records(tmp_path / "before").values()
        for taken in [samples for number, samples in rank if number == epoch][: step // 16]
    ]
    after = [samples for rank in records(tmp_path / "after").values() for _, samples in rank]
    before, after = ([index for samples in part for index in samples] for part in (before, after))
    assert set(before) | set(after) == set(range(640)) and len(before) + len(after) - 640 < 3
    assert len(set(weights_of(run).values())) == 1 and len(weights_of(run)) == 3
