"""The summary of a made-up run, and a folder that holds it."""

import json

from headrace.rank.context import EMPTY_REPORT


def summary(name, samples_per_s, **changes):
    host = {
        "group": "dnn_group",
        "instance_type": "x",
        "exit_code": 0,
        "cpu_utilization": 0.5,
        "cpu_s": {"trainer": 9.0},
    }
    return {
        **EMPTY_REPORT,
        "job_name": name,
        "outcome": "succeeded",
        "root_cause": None,
        "tf_data_mode": "local",
        "is_hetero": False,
        "world_size": 2,
        "global_batch_size": 64,
        "steps": 10,
        "samples_per_s": samples_per_s,
        "time_to_first_step_s": 3.0,
        "final_metrics": {"accuracy": 0.8, "val_accuracy": 0.9},
        "hosts": {"algo-1": host},
    } | changes


def write_run(folder, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary(folder.name, **{"samples_per_s": 100.0} | changes)))
    return folder
