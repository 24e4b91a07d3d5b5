"""The CloudWatch dashboard of a job shows its hosts by group, and their utilisation in per cent."""

from headrace.backends.sagemaker.dashboard import NAMESPACE, dashboard_body, hosts_by_group
from headrace.backends.sagemaker.metrics import METRICS
from headrace.job.instances import read_instances

JOB = {
    "ResourceConfig": {
        "InstanceGroups": [
            {"InstanceGroupName": "dnn_group", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
            {"InstanceGroupName": "data_group", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 2},
        ]
    }
}


def test_hosts_are_grouped_as_they_logged_it_themselves(capsys):
    logged = {"algo-1": "dnn_group", "algo-2": "data_group", "algo-3": "data_group"}
    assert hosts_by_group(JOB, logged) == {"dnn_group": ["algo-1"], "data_group": ["algo-2", "algo-3"]}
    assert capsys.readouterr().err == ""


def test_hosts_are_in_natural_order():
    logged = {f"algo-{number}": "dnn_group" for number in (10, 2, 1, *range(3, 10))}
    job = {"ResourceConfig": {"InstanceGroups": [
        {"InstanceGroupName": "dnn_group", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 10}]}}  # fmt: skip
    assert hosts_by_group(job, logged) == {"dnn_group": [f"algo-{number}" for number in range(1, 11)]}


def test_before_they_have_logged_it_an_assumption_is_made_and_said(capsys):
    assert hosts_by_group(JOB, {}) == {"data_group": ["algo-1", "algo-2"], "dnn_group": ["algo-3"]}
    assert "the logs do not yet say" in capsys.readouterr().err


def test_utilisation_is_scaled_to_100_percent_by_the_types_processors():
    hosts = {"data_group": ["algo-1", "algo-2"], "dnn_group": ["algo-3"]}
    types = {"data_group": "ml.c5.18xlarge", "dnn_group": "ml.p4d.24xlarge"}
    body = dashboard_body("job", "us-east-1", hosts, types, read_instances())
    by_title = {widget["properties"]["title"]: widget["properties"] for widget in body["widgets"]}
    cpu = next(properties for title, properties in by_title.items() if title.startswith("data_group: CPU"))
    expressions = [line[0]["expression"] for line in cpu["metrics"] if isinstance(line[0], dict)]
    assert expressions == ["m1/72", "m2/72"]
    assert cpu["yAxis"]["left"] == {"min": 0, "max": 100}
    gpu = next(properties for title, properties in by_title.items() if title.startswith("dnn_group: GPU"))
    assert gpu["metrics"][0][0]["expression"] == "m1/8"
    assert not [title for title in by_title if title.startswith("data_group: GPU")]
    for widget in body["widgets"]:
        assert widget["x"] + widget["width"] <= 24
        assert widget["type"] == "metric"
    own = [line[1] for widget in body["widgets"] for line in widget["properties"]["metrics"] if line[0] == NAMESPACE]
    assert {name for name in own if name.startswith("headrace:")} <= set(METRICS)
    places = [(widget["x"], widget["y"]) for widget in body["widgets"]]
    assert len(set(places)) == len(places)
