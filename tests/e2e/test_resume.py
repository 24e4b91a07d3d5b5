"""A job that was cut off goes on, in a second job with the same checkpoint folder."""

import re
import signal

import pytest

from tests.support import finish, process_of, run_job, start, wait_for
from tests.victims import FIRST_STEP_S

SAMPLES = 1438  # the digits' training part
SMALL = ["--num_of_data_instances=1", *(f"--hyperparameter={each}" for each in ("model=small_cnn", "log_every=1"))]


def ask_to_stop(process, folder):
    process.send_signal(signal.SIGINT)


def kill_a_rank(process, folder):
    process_of(folder.name, "algo-2", r"train_dnn\.py").kill()


@pytest.mark.parametrize(
    ("cut_off", "batch", "past", "names", "ranks"),
    [
        # An epoch of batches that small is much longer than it takes to stop a job.
        (ask_to_stop, 4, 9, r"epoch-\d{4}-step-\d{6}", 1),
        (kill_a_rank, 32, 22 + 9, r"epoch-\d{4}", 2),
    ],
    ids=["asked to stop, in mid-epoch, with fewer ranks", "killed, from the last epoch's end"],
)
def test_a_job_goes_on_where_another_was_cut_off(tmp_path, digits, cut_off, batch, past, names, ranks):
    steps_before, kept = SAMPLES // (2 * batch), tmp_path / "kept"
    flags = [*SMALL, f"--batch_size={batch}", f"--channel=training={digits}", f"--checkpoint_s3_uri={kept}"]
    process, folder = start(tmp_path, *flags, "--epochs=500")
    log = folder / "algo-2.log"
    wait_for(lambda: log.exists() and f"event=step step={past} " in log.read_text(), f"step {past}", FIRST_STEP_S)
    cut_off(process, folder)
    ended = finish(process, folder)
    assert ended.code == 1 and ended.summary["interrupted"] is (cut_off is ask_to_stop)
    newest = sorted(path.name for path in kept.glob("epoch-*"))[-1]
    assert re.fullmatch(names, newest)
    epoch, step = [*map(int, re.findall(r"\d+", newest)), 0][:2]

    # One rank ends the epoch that was begun, which tells a whole one's length all the same.
    again = run_job(tmp_path, *flags, f"--epochs={epoch + ranks}", f"--processes_per_host={ranks}")
    assert again.code == 0, again.output[-4000:]
    (resumed,) = again.events("resumed")
    assert (int(resumed.fields["epoch"]), int(resumed.fields["step"])) == (epoch, step)
    steps = SAMPLES // (batch * ranks)
    assert again.summary["steps"] == ranks * steps - step * steps // steps_before
    assert again.summary["steps_per_epoch"] == steps
    (data,) = again.events("data_resumed")
    # Of what the resumed epoch's steps took, no element comes again but what other ranks told nobody of.
    assert int(data.fields["left_out"]) + int(data.fields["repeated_at_most"]) >= step * 2 * batch
    assert int(data.fields["repeated_at_most"]) <= 2 * batch * steps_before
    assert again.summary["final_metrics"]["val_accuracy"] > 0.1


def test_a_checkpoint_folder_on_s3_is_refused_here(tmp_path):
    refused = run_job(tmp_path, "--checkpoint_s3_uri=s3://bucket/kept")
    assert refused.code == 2
    assert "on this machine it is a local folder" in refused.output
