"""Whole jobs of PyTorch on simulated hosts: the same training everywhere, and what faults make of it."""

import ast
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.breakage import FEED, MPIRUN, RANK, kill, kill_host, set_link
from tests.support import (
    ROOT,
    copy_source,
    finish,
    namespaces_allowed,
    process_of,
    processes_of,
    run_job,
    start,
    wait_for,
)

SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "--framework=pytorch"
needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no namespaces")


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_digits_npz.py"), str(folder)], check=True)
    return folder


@pytest.fixture
def source(tmp_path):
    return copy_source(tmp_path / "source", *SCRIPTS.glob("*.py"))


class Job:
    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_steps(self, more=1):
        so_far = self.text().count("headrace event=step ")
        wait_for(lambda: self.text().count("headrace event=step ") >= so_far + more, f"{more} more steps", 60)


@pytest.fixture
def victim(tmp_path, source):
    """Starts the steady script and returns once it makes steps."""
    running = []

    def begin(*flags, stepping=True):
        common = [TORCH, f"--source_dir={source}", "--training_script=steady_torch.py", "--isolation=namespaces"]
        running.append(Job(*start(tmp_path, *common, *flags)))
        if stepping:
            running[-1].wait_for_steps()
        return running[-1]

    yield begin
    for job in running:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()


def weights_of(run):
    return dict(re.findall(r"weights of rank (\d): (.+)", run.output))


def losses_of(run):
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


def test_training_is_the_same_to_the_last_bit_with_any_data_hosts_and_without(tmp_path, source, digits):
    flags = [TORCH, f"--source_dir={source}", "--training_script=check_torch.py", "--hyperparameter=model=small_cnn"]
    flags += [f"--channel=training={digits}", "--epochs=8"]
    cases = {
        "one data host": ["--num_of_data_instances=1"],
        "two data hosts, one loses its feed server": ["--num_of_data_instances=2"],
        "three data hosts, two feed servers each": ["--num_of_data_instances=3", "--num_of_data_workers=2"],
        "none": ["--no-is_hetero"],
    }
    found = {}
    for name, hosts in cases.items():
        process, folder = start(tmp_path, *flags, *hosts)
        if "loses" in name:
            job = Job(process, folder)
            job.wait_for_steps()
            kill(job, "algo-2", FEED)
        run = finish(process, folder)
        assert run.code == 0, run.output[-4000:]
        weights = weights_of(run)
        assert set(weights) == {"0", "1"} and len(set(weights.values())) == 1, weights
        assert run.summary["final_metrics"]["val_accuracy"] > 0.9
        assert run.summary["world_size"] == 2 and run.summary["steps"] == 8 * 22
        found[name] = (weights["0"], losses_of(run))
    assert len({weights for weights, _ in found.values()}) == 1, found
    assert len({tuple(losses) for _, losses in found.values()}) == 1
    restarts = run.summary["hosts"]["algo-1"]["restarts"]
    assert restarts["worker"] == 0


def test_two_dnn_hosts_with_a_rank_each_hold_the_same_weights(tmp_path, source, digits):
    run = run_job(
        tmp_path, TORCH, f"--source_dir={source}", "--training_script=check_torch.py", "--epochs=1",
        "--hyperparameter=model=small_cnn", "--num_of_data_instances=1", "--num_of_dnn_instances=2",
        "--processes_per_host=1", f"--channel=training={digits}",
    )  # fmt: skip
    assert run.code == 0, run.output[-4000:]
    weights = weights_of(run)
    assert set(weights) == {"0", "1"} and len(set(weights.values())) == 1
    assert {event.fields["address"] for event in run.events("feed_ready")} >= {"algo-1:6001", "algo-3:6001"}


def test_lines_of_files_are_shared_exactly_and_train_the_same_model_on_any_hosts(tmp_path, source):
    folder = tmp_path / "lines"
    folder.mkdir()
    for number in range(5):
        lines = range(100 * number, 100 * number + 12 + 5 * number)
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    flags = [TORCH, f"--source_dir={source}", "--training_script=lines.py", f"--channel=training={folder}"]
    cases = {
        "local": ["--no-is_hetero"],
        "two dnn hosts, one data host": [
            "--num_of_dnn_instances=2",
            "--processes_per_host=1",
            "--num_of_data_instances=1",
        ],
        "two data hosts, one loses its feed server": ["--num_of_data_instances=2"],
    }
    found = {}
    for name, hosts in cases.items():
        process, run_folder = start(tmp_path, *flags, *hosts)
        if "loses" in name:
            job = Job(process, run_folder)
            job.wait_for_steps()
            kill(job, "algo-2", FEED)
        run = finish(process, run_folder)
        assert run.code == 0, run.output[-4000:]
        seen = re.findall(r"rank \d epoch (\d): (\d+) steps, (\[.*\])", run.output)
        assert len({(epoch, steps) for epoch, steps, _ in seen}) == 2, "ranks make the same number of steps"
        for epoch in "01":
            taken = sorted(line for of, _, lines in seen if of == epoch for line in ast.literal_eval(lines))
            assert taken == [100 * number + line for number in range(5) for line in range(12 + 5 * number)]
        weights = re.findall(r"rank \d: weights (\w+)", run.output)
        assert len(weights) == 2 and len(set(weights)) == 1
        found[name] = weights[0], losses_of(run)
    assert len({repr(each) for each in found.values()}) == 1, found


def test_without_a_channel_images_are_made_up_and_loopback_hosts_do_too(tmp_path):
    run = run_job(
        tmp_path, TORCH, "--isolation=loopback", "--num_of_data_instances=1", "--epochs=1", "--batch_size=16",
        "--hyperparameter=model=small_cnn", "--hyperparameter=examples=128",
    )  # fmt: skip
    assert run.code == 0, run.output[-4000:]
    assert run.summary["tf_data_mode"] == "service" and run.summary["steps"] == 4
    assert (run.folder / "algo-2" / "model" / "model.pt").is_file()


def test_the_script_runs_without_a_launcher(tmp_path):
    command = [sys.executable, str(ROOT / "code" / "train_torch.py"), "--model=small_cnn", "--epochs=1"]
    subprocess.run([*command, "--examples=64"], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "model" / "model.pt").is_file() and (tmp_path / "output" / "trainer.json").is_file()


def test_a_script_with_a_guarded_main_its_own_process_group_and_a_split_trains_on_each_sample_once(tmp_path, source):
    flags = [TORCH, f"--source_dir={source}", "--training_script=guarded.py", "--num_of_data_instances=1"]
    run = run_job(tmp_path, *flags)
    assert run.code == 0, run.output[-4000:]
    for rank in (0, 1):
        for epoch in (0, 1):
            assert f"rank {rank} epoch {epoch}: 5 steps, {80 * (epoch + 1)} samples, 20 held out" in run.output


def test_a_split_without_a_seed_is_refused_and_says_why(tmp_path, source):
    flags = [TORCH, f"--source_dir={source}", "--training_script=guarded.py", "--num_of_data_instances=1"]
    run = run_job(tmp_path, *flags, "--hyperparameter=seed=-1")
    assert run.code == 1
    assert "random_split, for one, needs a generator with a seed" in run.summary["root_cause"]["message"]


@needs_namespaces
def test_killed_feed_servers_come_back_and_a_lost_data_host_is_named(victim):
    job = victim("--epochs=10")
    kill(job, "algo-1", FEED)
    kill(job, "algo-3", FEED)
    wait_for(lambda: job.text().count("event=restarted role=worker") == 2, "the servers' restarts", 20)
    job.wait_for_steps(2)
    kill_host(job, "algo-2")
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert run.summary["hosts"]["algo-1"]["restarts"]["worker"] == 1
    assert [host for host, record in run.summary["hosts"].items() if record["lost"]] == ["algo-2"]


@needs_namespaces
def test_a_network_cut_is_survived_and_a_suspended_feed_server_is_passed_over(victim):
    job = victim("--epochs=8")
    set_link(job, "algo-2", "down")
    time.sleep(4)  # the length of the cut, not a wait
    set_link(job, "algo-2", "up")
    job.wait_for_steps(2)
    for process in processes_of(job.folder.name):
        if process.environ().get("SM_CURRENT_HOST") == "algo-1" and re.search(FEED, " ".join(process.cmdline())):
            process.send_signal(signal.SIGSTOP)
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-3000:]
    assert not run.events("host_lost")


@needs_namespaces
@pytest.mark.parametrize(("words", "message"), [(RANK, r"rank\d.* SIGKILL"), (MPIRUN, "mpirun.* SIGKILL")])
def test_a_killed_rank_ends_the_job_and_is_the_root_cause(victim, words, message):
    job = victim("--epochs=200")
    kill(job, "algo-3", words)
    run = finish(job.process, job.folder, 60)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert re.search(message, f"{cause['role']} {cause['message']}"), cause


@needs_namespaces
def test_a_rank_that_hangs_ends_the_job_within_the_stall_timeout(victim):
    job = victim("--epochs=200", "--hyperparameter=hangs=30", "--hyperparameter=stall_timeout_s=10")
    run = finish(job.process, job.folder, 90)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert "no step was made for" in cause["message"] and cause["role"] == "rank1", cause


@needs_namespaces
def test_training_goes_on_without_a_feed_server_that_is_late_beside_a_busy_trainer(victim):
    late = ["--hyperparameter=late_on=algo-2", "--hyperparameter=startup_timeout_s=15"]
    job = victim("--num_of_data_instances=1", "--epochs=20", *late)
    run = finish(job.process, job.folder)
    assert run.code == 0, run.output[-4000:]
    assert run.summary["train_s"] > 15, "the time to start up has not run out"
    assert "steps are made without 1 feed server on algo-2" in run.output
    data, beside = (run.summary["workers"][f"{host}/worker"] for host in ("algo-1", "algo-2"))
    assert data["share"] == {"0": 1.0, "1": 1.0} and data["batches"] >= 20 * 80 and data["batches_per_s"] > 10
    assert beside["batches"] == 0 and beside["share"] == {}
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    delivered = [each["workers"]["algo-1/worker"] for each in records if "workers" in each]
    assert delivered and all(each["batches_per_s"] > 10 and each["bytes_per_s"] > 100 for each in delivered)


@needs_namespaces
def test_a_rank_that_hangs_while_a_feed_server_is_late_ends_the_job_within_the_stall_timeout(victim):
    job = victim("--epochs=200", "--hyperparameter=hangs=30", "--hyperparameter=stall_timeout_s=10",
                 "--hyperparameter=late_on=algo-2", "--num_of_data_instances=1")  # fmt: skip
    run = finish(job.process, job.folder, timeout_s=60)
    assert run.code == 1
    assert "(stall_timeout_s)" in run.summary["root_cause"]["message"], run.summary["root_cause"]


@needs_namespaces
def test_a_suspended_rank_is_named(victim):
    job = victim("--epochs=200", "--hyperparameter=stall_timeout_s=10")
    rank = process_of(job.folder.name, "algo-3", RANK)
    rank.send_signal(signal.SIGSTOP)
    run = finish(job.process, job.folder, 90)
    assert run.code == 1
    assert "suspended" in run.summary["root_cause"]["message"], run.summary["root_cause"]


@needs_namespaces
def test_a_sample_that_raises_is_the_root_cause_with_host_index_and_traceback(victim):
    job = victim("--hyperparameter=broken=77", stepping=False)
    run = finish(job.process, job.folder, 90)
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert re.search(r"SampleError: sample 77 raised ValueError: no number 77 .*\[on algo-\d:6001", cause["message"])
    assert any("in __getitem__" in line for line in cause["log_tail"]), cause


@needs_namespaces
def test_a_sample_that_hangs_is_the_root_cause(victim):
    job = victim("--hyperparameter=endless=77", "--hyperparameter=stall_timeout_s=10", stepping=False)
    run = finish(job.process, job.folder, 120)
    assert run.code == 1
    assert "sample 77 hangs" in run.summary["root_cause"]["message"], run.summary["root_cause"]


@needs_namespaces
def test_a_script_that_fails_on_the_data_host_says_so_there(victim, tmp_path):
    job = victim(f"--hyperparameter=seen_here={tmp_path / 'missing'}", stepping=False)
    run = finish(job.process, job.folder, 120)
    assert run.code == 1
    assert "missing" in " ".join(run.summary["root_cause"]["log_tail"]), run.summary["root_cause"]


def records(folder):
    """Epoch and samples of each step, by rank."""
    lines = {path.name: path.read_text().splitlines() for path in folder.glob("rank*")}
    return {
        name: [(int(each.split()[0]), ast.literal_eval(each.partition(" ")[2])) for each in of]
        for name, of in lines.items()
    }


@pytest.mark.parametrize("in_a_thread", [0, 1])
def test_what_a_script_holds_while_it_trains_is_there_where_its_batches_are_made(tmp_path, source, in_a_thread):
    run = run_job(
        tmp_path, TORCH, f"--source_dir={source}", "--training_script=held.py", "--num_of_data_instances=1",
        f"--hyperparameter=in_a_thread={in_a_thread}",
    )  # fmt: skip
    assert run.code == 0, run.output[-4000:]
    seen = sorted(json.loads(line) for line in re.findall(r"seen: (.+)", run.output))
    assert seen == [[0, 120, 0], [1, 120, 0]], "rank, samples, wrong ones"


@pytest.mark.parametrize(
    ("how", "message"),
    [("peek", "rank 1 took 10 batches of epoch 0 of a loader, and rank 0 took 1"),
     ("split", "rank 1 has made another dataset or loader than rank 0"),
     ("own part", "rank 1 has made another dataset or loader than rank 0")],
)  # fmt: skip
def test_ranks_that_would_not_share_the_samples_end_the_job(tmp_path, source, how, message):
    run = run_job(
        tmp_path, TORCH, f"--source_dir={source}", "--training_script=apart.py", "--no-is_hetero",
        f"--hyperparameter=how={how}",
    )  # fmt: skip
    assert run.code == 1
    assert message in run.summary["root_cause"]["message"], run.summary["root_cause"]


@pytest.mark.parametrize(
    ("spawn", "message"), [(0, "trains before it takes a batch"), (1, "starts processes that make loaders")]
)
def test_a_script_that_does_not_train_on_the_loader_ends_the_job_at_once_and_not_after_restarts(
    tmp_path, source, spawn, message
):
    run = run_job(
        tmp_path, TORCH, f"--source_dir={source}", "--training_script=rewrapped.py", "--num_of_data_instances=1",
        "--processes_per_host=1", f"--hyperparameter=spawn={spawn}", "--local_workers=off",
    )  # fmt: skip
    assert run.code == 1
    cause = run.summary["root_cause"]
    assert message in cause["message"] and "restarts" not in cause["message"], cause
    assert not run.events("restarted")


@needs_namespaces
def test_a_job_that_is_asked_to_stop_goes_on_in_mid_epoch_with_another_number_of_ranks(victim, tmp_path):
    for name in ("before", "after", "kept"):
        (tmp_path / name).mkdir()
    kept = f"--checkpoint_s3_uri={tmp_path / 'kept'}"
    job = victim("--epochs=200", f"--hyperparameter=ledger={tmp_path / 'before'}", kept)
    job.wait_for_steps(10)  # a second epoch
    job.process.send_signal(signal.SIGINT)
    assert finish(job.process, job.folder, 60).code == 1
    newest = max(path.name for path in (tmp_path / "kept").glob("epoch-*"))
    epoch, step = map(int, re.fullmatch(r"epoch-(\d{4})-step-(\d{6})", newest).groups())

    flags = [f"--epochs={epoch + 1}", "--processes_per_host=3", f"--hyperparameter=ledger={tmp_path / 'after'}"]
    again = victim(*flags, kept, stepping=False)
    run = finish(again.process, again.folder)
    assert run.code == 0, run.output[-3000:]
    assert run.events("resumed")[0].fields["step"] == str(step)
    before = [taken for rank in records(tmp_path / "before").values()
              for taken in [samples for number, samples in rank if number == epoch][: step // 16]]  # fmt: skip
    after = [samples for rank in records(tmp_path / "after").values() for _, samples in rank]
    before, after = ([index for samples in part for index in samples] for part in (before, after))
    assert set(before) | set(after) == set(range(640)) and not set(before) & set(after)
    assert len(before) + len(after) - 640 < 3
    assert len(set(weights_of(run).values())) == 1 and len(weights_of(run)) == 3


def test_launchers_do_not_load_torch():
    code = "import sys; import headrace.host.main, headrace.start; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "code", check=False).returncode == 0
