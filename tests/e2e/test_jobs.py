"""Whole jobs run on simulated hosts with the real dispatcher, workers, mpirun and Horovod."""

import json
import os
import subprocess
import sys

import keras
import pytest
from headrace.__main__ import main as headrace
from headrace.report.compare import compare
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support import JOB_TIMEOUT_S, ROOT, namespaces_allowed, run_job

HETERO = ["--is_hetero"]
HOMOGENEOUS = ["--no-is_hetero"]
EPOCHS = 4
TRAINING = [f"--epochs={EPOCHS}", "--hyperparameter=model=small_cnn", "--hyperparameter=log_every=5"]

needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no user namespaces")


def test_digits_are_learned_with_identical_weights_and_a_complete_summary(tmp_path, digits, with_script):
    run = run_job(tmp_path, *HETERO, *TRAINING, *with_script("check_weights.py"), f"--channel=training={digits}")
    assert run.code == 0, run.output[-4000:]
    assert run.output.count("weights identical on 2 ranks") == 2

    summary = run.summary
    hosts = ["algo-1", "algo-2", "algo-3"]
    leader = hosts[-1]
    assert list(summary["hosts"]) == hosts
    assert summary["outcome"] == "succeeded" and summary["root_cause"] is None
    assert summary["is_hetero"] and summary["tf_data_mode"] == "service"
    assert (summary["world_size"], summary["global_batch_size"], summary["epochs"]) == (2, 64, EPOCHS)
    assert summary["steps"] == EPOCHS * (1438 // 64)
    assert summary["final_metrics"]["val_accuracy"] > 0.9
    assert 0 < summary["step_time_ms"]["median"] <= summary["step_time_ms"]["p90"]
    assert summary["samples_per_s"] > 0 and summary["ideal_step_time_ms"] > 0
    assert 0 <= summary["input_bound_share"] <= 1
    assert summary["time_to_first_step_s"] > 0 and summary["train_s"] > 0 and summary["teardown_s"] >= 0
    for host in hosts:
        record = summary["hosts"][host]
        assert record["exit_code"] == 0
        assert record["restarts"] == {"dispatcher": 0, "worker": 0}
        assert record["cpu_utilization"] > 0
        assert record["cpu_s"]["worker"] > 0, f"{host}'s workers did nothing"

    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "epoch" in line] == list(range(1, EPOCHS + 1))
    first = next(line for line in lines if "step_time_ms" in line)  # the leader writes to this file too
    assert {"step_time_ms", "samples_per_s", "input_bound_share"} <= set(first)
    scalars = EventAccumulator(str(run.folder / "tensorboard")).Reload().Tags()["tensors"]
    assert {"step_time_ms", "samples_per_s", "input_bound_share", "val_accuracy"} <= set(scalars)
    assert summary["ideal_step_time_ms"] <= 1.002 * summary["step_time_ms"]["median"]  # exact to a thousandth
    assert summary["sample_bytes"] > 3072
    assert summary["compute_cpu_s_per_step"] > 0 and summary["rank_cpu_s_per_step"] > 0
    assert headrace(["report", str(run.folder)]) == 0 and (run.folder / "report.html").is_file()
    assert headrace(["plan", str(run.folder)]) == 0
    model = keras.saving.load_model(run.folder / leader / "model" / "model.keras")
    assert model.output_shape == (None, 10)
    assert sorted(path.name for path in (run.folder / leader / "checkpoints").iterdir())[-1] == f"epoch-{EPOCHS:04d}"
    assert not (run.folder / leader / "headrace").exists()

    expected = ["topology", "training_started", "first_step", "step", "checkpoint", "training_finished", "outcome"]
    for name in [*expected, "dispatcher_ready"]:
        assert run.events(name), f"no {name} event"
    # The worker beside the ranks yields to them, and may not be ready before the job ends.
    assert [event.fields["n"] for event in run.events("workers_ready")] in (["3"], [])
    assert len(run.events("outcome")) == len(hosts)
    assert {"step_ms", "samples_per_s", "input_bound"} <= set(run.events("step")[0].fields)
    assert summary["training_script"] == "check_weights.py"
    assert "samples/s" in compare([summary, summary])


@needs_namespaces
def test_without_local_workers_the_data_hosts_make_all_elements(tmp_path, with_script):
    run = run_job(tmp_path, *with_script("tagged.py"), "--local_workers=off", "--hyperparameter=hosts=2")
    assert run.code == 0, run.output[-4000:]
    makers = {}
    for rank in (0, 1):
        found = json.loads((run.folder / "algo-3/output/data" / f"makers-{rank}.json").read_text())
        for host, count in found.items():
            makers[host] = makers.get(host, 0) + count
    assert set(makers) == {"algo-1", "algo-2"}
    assert min(makers.values()) >= 20
    assert run.summary["local_workers"] == "off"


@needs_namespaces
def test_several_dnn_hosts_train_one_model_on_elements_of_all_hosts_without_sshd(tmp_path, with_script):
    hosts = ["--num_of_data_instances=1", "--num_of_dnn_instances=2", "--processes_per_host=1"]
    run = run_job(tmp_path, *hosts, *with_script("several.py"))
    assert run.code == 0, run.output[-4000:]
    found = {
        int(path.stem.split("-")[1]): json.loads(path.read_text())
        for path in run.folder.glob("*/output/data/rank-*.json")
    }
    assert sorted(found) == [0, 1]
    assert all(each["weights_identical"] for each in found.values())
    assert [(found[rank]["host"], found[rank]["local_rank"]) for rank in (0, 1)] == [("algo-2", 0), ("algo-3", 0)]
    # A worker that finds no free processor makes few batches, and one of the ranks may get none of them.
    assert {maker for each in found.values() for maker in each["makers"]} == {"algo-1", "algo-2", "algo-3"}
    for each in found.values():
        assert set(each["makers"]) - {each["host"]}, "a rank got elements of its own host only"
    assert run.summary["hosts"]["algo-3"]["cpu_s"]["mpi-daemon"] > 0


def test_the_artificial_dataset_runs_on_loopback_addresses(tmp_path):
    flags = ["--isolation=loopback", "--num_of_data_instances=1", "--num_of_data_workers=2", "--steps_per_epoch=5",
             "--processes_per_host=1"]  # fmt: skip
    run = run_job(tmp_path, *flags, "--hyperparameter=model=small_cnn", "--epochs=1", "--batch_size=16")
    assert run.code == 0, run.output[-4000:]
    assert run.summary["steps"] == 5
    ready = [event.fields["n"] for event in run.events("workers_ready")]
    assert ready in (["4"], [])  # workers yield to the ranks beside them, and may not be ready before the job ends


@pytest.mark.parametrize(("how", "said"), [("raise", "raised ValueError: no good_reason at all"), ("kill", "SIGKILL")])
def test_a_failing_rank_fails_the_job_on_every_host_with_its_root_cause(how, said, tmp_path, with_script):
    run = run_job(
        tmp_path, *HETERO, *with_script("failing.py"), f"--hyperparameter=how={how}", "--hyperparameter=lease_s=60"
    )
    assert run.code == 1
    cause = run.summary["root_cause"]
    leader = list(run.summary["hosts"])[-1]
    assert (cause["host"], cause["role"]) == (leader, "rank1")
    assert said in cause["message"]
    assert cause.get("signal") == ("SIGKILL" if how == "kill" else None)
    for host, record in run.summary["hosts"].items():
        assert record["exit_code"] == 1
        assert said in (run.folder / host / "output" / "failure").read_text()
        assert "event=outcome status=failed" in run.log(host)


def test_the_script_makes_a_step_without_a_launcher(tmp_path, digits):
    command = [sys.executable, str(ROOT / "code" / "train_dnn.py"), "--model=small_cnn", "--epochs=1", "--batch_size=4"]
    command += ["--steps_per_epoch=1", f"--channel={digits}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=JOB_TIMEOUT_S)
    assert "made-up images" not in done.stdout
    assert (tmp_path / "model" / "model.keras").is_file()


def test_an_exit_status_other_than_zero_is_a_failure(tmp_path, with_script):
    run = run_job(tmp_path, *HOMOGENEOUS, *with_script("failing.py"), "--hyperparameter=how=exit")
    assert run.code == 1
    assert run.summary["root_cause"]["exit_code"] == 3


def test_a_rank_that_ends_before_the_others_is_the_root_cause(tmp_path, with_script):
    run = run_job(tmp_path, *HOMOGENEOUS, *with_script("ends_alone.py"))
    assert run.code == 1
    assert run.summary["root_cause"]["role"] == "rank1"
    assert "its script has ended, and rank0 waits for it" in run.summary["root_cause"]["message"]


def test_a_channel_that_is_no_dataset_is_the_root_cause(tmp_path):
    (tmp_path / "empty").mkdir()
    run = run_job(tmp_path, *HOMOGENEOUS, f"--channel=training={tmp_path / 'empty'}")
    assert run.code == 1
    assert "there are no files to read records from" in run.summary["root_cause"]["message"]


@needs_namespaces
def test_a_careless_script_behind_a_proxy_ends_and_is_warned(tmp_path, with_script):
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    run = run_job(tmp_path, *with_script("careless.py"), "--num_of_data_instances=1", env=os.environ | nowhere)
    assert run.code == 0, run.output[-4000:]
    assert run.output.count("which the script started and left running") == 2
    assert "each rank trains its own model: wrap the optimizer" in run.output
    assert run.summary["final_metrics"]["loss"] is None and "training has diverged" in run.output
