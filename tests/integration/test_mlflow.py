"""MLflow's own client reads what a job's leader logs."""

from headrace.host.exporters.mlflow import MlflowRun
from headrace.rank.context import EMPTY_REPORT
from mlflow.tracking import MlflowClient


def test_mlflow_reads_what_the_leader_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    run = MlflowRun("job-1", {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": "mine"})
    step = {"step": 7.0, "step_ms": 250.0, "data_wait_ms": 50.0, "samples_per_s": 9.0, "input_bound": 0.2}
    run.write([{"time": 1.0, **step}, {"time": 2.0, "groups": {"dnn_group": {"cpu_utilization": 0.5}}}])
    told = {"outcome": "succeeded", "tf_data_mode": "local", "is_hetero": False, "local_workers": "on"}
    summary = EMPTY_REPORT | told | {"final_metrics": {"accuracy": 0.9, "top-5 @ 1%!": 0.5}}
    run.write([{"time": 3.0, "summary": summary}])
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.run_name == "job-1" and found.info.status == "FINISHED"
    assert found.data.metrics["step_time_ms"] == 250.0 and found.data.metrics["dnn_group/cpu_utilization"] == 0.5
    assert found.data.metrics["final/top-5 _ 1__"] == 0.5  # the given name would make MLflow refuse all metrics
    assert found.data.metrics["final/accuracy"] == 0.9 and found.data.params["tf_data_mode"] == "local"
