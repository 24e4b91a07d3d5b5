"""A second job with the same checkpoint folder continues where the first one was stopped."""

import re
import signal

from tests.support import finish, run_job, start, wait_for
from tests.victims import FIRST_STEP_S

SAMPLES = 1438  # number of digits in the training part
SMALL = ["--num_of_data_instances=1", *(f"--hyperparameter={each}" for each in ("model=small_cnn", "log_every=1"))]


def test_a_job_that_is_asked_to_stop_in_mid_epoch_goes_on_there_with_fewer_ranks(tmp_path, digits):
    # With batches this small, an epoch takes much longer than stopping a job.
    batch, kept = 4, tmp_path / "kept"
    steps_before, steps = SAMPLES // (2 * batch), SAMPLES // batch
    flags = [*SMALL, f"--batch_size={batch}", f"--channel=training={digits}", f"--checkpoint_s3_uri={kept}"]
    for _ in range(4):  # a stop that comes late, while an epoch ends, leaves that epoch's checkpoint
        process, folder = start(tmp_path, *flags, "--epochs=500")
        log = folder / "algo-2.log"
        wait_for(lambda log=log: log.exists() and "event=step step=9 " in log.read_text(), "step 9", FIRST_STEP_S)
        process.send_signal(signal.SIGINT)
        ended = finish(process, folder)
        assert ended.code == 1 and ended.summary["interrupted"]
        newest = sorted(path.name for path in kept.glob("epoch-*"))[-1]
        if "-step-" in newest:
            break
    epoch, step = map(int, re.fullmatch(r"epoch-(\d{4})-step-(\d{6})", newest).groups())

    # One rank finishes the epoch that two ranks began. `steps_per_epoch` is still the length of a whole epoch.
    again = run_job(tmp_path, *flags, f"--epochs={epoch + 1}", "--processes_per_host=1")
    assert again.code == 0, again.output[-4000:]
    (resumed,) = again.events("resumed")
    assert (int(resumed.fields["epoch"]), int(resumed.fields["step"])) == (epoch, step)
    assert again.summary["steps"] == steps - step * steps // steps_before
    assert again.summary["steps_per_epoch"] == steps
    (data,) = again.events("data_resumed")
    # Elements trained on before the stop are left out, except those that rank 1 had not yet reported to rank 0.
    assert int(data.fields["left_out"]) + int(data.fields["repeated_at_most"]) >= step * 2 * batch
    assert int(data.fields["repeated_at_most"]) <= 2 * batch * steps_before
    assert again.summary["final_metrics"]["val_accuracy"] > 0.1


def test_a_checkpoint_folder_on_s3_is_refused_here(tmp_path):
    refused = run_job(tmp_path, "--checkpoint_s3_uri=s3://bucket/kept")
    assert refused.code == 2
    assert "a run on this machine needs the path of a local folder" in refused.output
