"""Wrong input is refused with one line, and a dry run prints the request. Neither sends anything."""

import json
import os
import socket
import sys

import boto3
import pytest
from headrace.cli.start import main

from tests.integration.account import BUCKET, REGION, SMALL

WRONG = [
    ([*SMALL, "--dnn_instance_type", "ml.p4d.24xlargee"], 2, "did you mean ml.p4d.24xlarge"),
    ([*SMALL, "--data_instance_type", "ml.trn1.2xlarge"], 2, "needs a special image"),
    ([*SMALL, "--dnn_instance_type", "ml.g5.xlarge", "--processes_per_host", "8"], 2, "(GPUs: 1); give 1"),
    ([*SMALL, "--dnn_instance_type", "ml.p2.8xlarge"], 2, "give --processes_per_host"),
    ([*SMALL, "--tf_data_mode", "local"], 2, "leaves the data group idle"),
    ([*SMALL, "--no-is_hetero", "--num_of_data_instances", "2"], 2, "needs a data group"),
    ([*SMALL, "--keep_alive_period", "60"], 2, "no warm pools for instance groups"),
    ([*SMALL, "--channel", "t=s3://b/x@gpu_group"], 2, "names group 'gpu_group'"),
    ([*SMALL, "--channel", "t=/data"], 2, "SageMaker reads s3://"),
    (SMALL[2:], 2, "no role: give --role or set SAGEMAKER_ROLE"),
    ([*SMALL[:2], *SMALL[4:]], 2, "no region: give --region"),
    ([*SMALL, "--retries", "-1"], 2, "--retries is -1"),
    ([*SMALL, "--framework_version", "1.2.3", "--image_uri", ""], 2, "check --framework_version"),
    ([*SMALL, "--framework_version", "2.10", "--image_uri", ""], 2, "2.10 has Python 3.9, and headrace needs 3.10"),
    ([*SMALL, "--tag", "a=1", "--tag", "a=2"], 2, "--tag gives one key twice"),
]


@pytest.mark.parametrize(("argv", "code", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_wrong_input_is_one_line_and_nothing_is_sent(aws, capsys, argv, code, said):
    assert main(argv) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert aws.names() == []
    assert boto3.client("s3", REGION).list_buckets()["Buckets"] == []


def test_no_credentials_is_one_line(monkeypatch, tmp_path, capsys):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main(SMALL) == 2
    error = capsys.readouterr().err
    assert "no usable AWS credentials" in error
    assert error.count("\n") == 1


def test_a_bucket_that_is_denied_is_one_line(aws, monkeypatch, capsys):
    from botocore.exceptions import ClientError

    def denied(self, path, uri):
        from headrace.backends.sagemaker.account import aws_errors

        with aws_errors(f"uploading to {uri}"):
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}, "PutObject")

    monkeypatch.setattr("headrace.backends.sagemaker.account.Account.upload", denied)
    assert main(SMALL) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"uploading to s3://{BUCKET}" in error
    assert "AccessDenied" in error
    assert "AWS_PROFILE" in error
    assert aws.names() == []


DRY = [
    [],
    ["--no-is_hetero", "--tf_data_mode", "local", "--num_of_data_workers", "0"],
    ["--channel", "training=s3://b-u-c/x@data_group", "--channel", "validation=s3://b-u-c/y@dnn_group", "--spot",
     "--subnets", "subnet-0a", "--security_group_ids", "sg-0a"],
]  # fmt: skip


@pytest.mark.parametrize("flags", DRY, ids=["hetero", "homogeneous", "channels, spot and VPC"])
def test_a_dry_run_prints_a_valid_request_and_opens_no_socket(flags, monkeypatch, capsys, tmp_path):
    from headrace.backends.sagemaker.request_check import check_request

    def forbidden(*args, **kwargs):
        raise AssertionError("a dry run opened a socket")

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    assert main(["--dry_run", *flags]) == 0
    printed = capsys.readouterr()
    check_request(json.loads(printed.out))
    assert "USD" in printed.err


def test_a_type_that_the_table_lacks_needs_only_the_number_of_its_gpus(capsys):
    flags = ["--dnn_instance_type", "ml.p5en.48xlarge", "--processes_per_host", "8"]
    assert main(["--dry_run", "--role", "arn:aws:iam::123456789012:role/R", *flags]) == 0
    request = json.loads(capsys.readouterr().out)
    assert int(json.loads(request["HyperParameters"]["processes_per_host"])) == 8


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_a_role_given_by_name_is_of_the_regions_partition(region, partition, capsys):
    assert main(["--dry_run", "--role", "Trainer", "--region", region]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["RoleArn"] == f"arn:{partition}:iam::123456789012:role/Trainer"
    assert "a name, not an ARN" in printed.err


def test_a_pytorch_job_has_pytorchs_image_script_and_framework_and_needs_no_torch(capsys):
    assert main(["--dry_run", "--framework", "pytorch", "--role", "arn:aws:iam::123456789012:role/R"]) == 0
    request = json.loads(capsys.readouterr().out)
    hyperparameters = {name: json.loads(value) for name, value in request["HyperParameters"].items()}
    assert "/pytorch-training:" in request["AlgorithmSpecification"]["TrainingImage"]
    assert (hyperparameters["training_script"], hyperparameters["framework"]) == ("train_torch.py", "pytorch")
    assert "torch" not in sys.modules


def test_the_job_gets_mlflows_server_and_the_flags_of_the_plan(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.com")
    flags = ["--local_workers", "off", "--metrics_port", "9500"]
    assert main(["--dry_run", "--role", "arn:aws:iam::123456789012:role/R", *flags]) == 0
    printed = capsys.readouterr()
    request = json.loads(printed.out)
    assert request["Environment"]["MLFLOW_TRACKING_URI"] == "https://mlflow.example.com"
    assert "mlflow-skinny" in printed.err
    hyperparameters = {name: json.loads(value) for name, value in request["HyperParameters"].items()}
    assert (hyperparameters["local_workers"], str(hyperparameters["metrics_port"])) == ("off", "9500")


def test_local_workers_off_without_data_hosts_is_refused(capsys):
    assert main(["--dry_run", "--no-is_hetero", "--tf_data_mode", "service", "--local_workers", "off"]) == 2
    assert "--local_workers off needs data hosts" in capsys.readouterr().err
