"""A job spec becomes a request that SageMaker's own interface description accepts."""

import dataclasses
import json
import re

import pytest
from headrace.backends.sagemaker.cloud_options import CloudOptions
from headrace.backends.sagemaker.metrics import metric_definitions
from headrace.backends.sagemaker.request import build_request, source_uri
from headrace.backends.sagemaker.request_check import check_instance_type, check_request
from headrace.errors import InputError
from headrace.events import format_event
from headrace.job.spec import Channel, InstanceGroup, JobSpec

ROLE = "arn:aws:iam::123456789012:role/service-role/Trainer"
OPTIONS = CloudOptions(ROLE, "us-east-1", "1.dkr.ecr.us-east-1.amazonaws.com/tf:2.21", "s3://bucket/headrace")
GROUPS = (InstanceGroup("data_group", "ml.c5.18xlarge", 2), InstanceGroup("dnn_group", "ml.p4d.24xlarge", 1))


def spec(**changes):
    given = {"job_name": "job-1", "groups": GROUPS, "tf_data_mode": "service", "processes_per_host": 8, **changes}
    return JobSpec(**given)


def request(job=None, **options):
    made = build_request(job or spec(), dataclasses.replace(OPTIONS, **options), "secret")
    check_request(made)
    return made


def test_groups_take_the_place_of_instance_type_and_count():
    resources = request()["ResourceConfig"]
    assert [(g["InstanceGroupName"], g["InstanceType"], g["InstanceCount"]) for g in resources["InstanceGroups"]] == [
        ("data_group", "ml.c5.18xlarge", 2),
        ("dnn_group", "ml.p4d.24xlarge", 1),
    ]
    assert not {"InstanceType", "InstanceCount"} & resources.keys()


def test_a_homogeneous_job_has_one_type_and_count_and_may_keep_its_hosts_warm():
    job = spec(groups=(InstanceGroup("homogeneousCluster", "ml.g5.xlarge", 3),), tf_data_mode="local")
    resources = request(job, keep_alive_period_s=600)["ResourceConfig"]
    assert (resources["InstanceType"], resources["InstanceCount"]) == ("ml.g5.xlarge", 3)
    assert resources["KeepAlivePeriodInSeconds"] == 600
    assert "InstanceGroups" not in resources


def test_hyperparameters_are_json_so_that_the_toolkit_gives_the_script_the_very_same_text():
    job = spec(hyperparameters={"learning_rate": "1e-3", "flag": "True", "note": 'a "b"'})
    decoded = {name: json.loads(value) for name, value in request(job)["HyperParameters"].items()}
    assert (decoded["learning_rate"], decoded["flag"], decoded["note"]) == ("1e-3", "True", 'a "b"')
    assert decoded["sagemaker_program"] == "launcher.py"
    assert decoded["sagemaker_submit_directory"] == source_uri(spec(), OPTIONS)
    assert decoded["processes_per_host"] == "8"
    assert "sagemaker_mpi_enabled" not in decoded


def test_the_toolkit_starts_mpi_on_the_dnn_group_alone():
    decoded = {name: json.loads(v) for name, v in request(distribution="mpi")["HyperParameters"].items()}
    assert decoded["sagemaker_mpi_enabled"] is True
    assert decoded["sagemaker_mpi_num_of_processes_per_host"] == 8
    assert decoded["sagemaker_distribution_instance_groups"] == ["dnn_group"]


def test_options_for_mpirun_go_to_whoever_starts_it():
    job = spec(custom_mpi_options="-x NCCL_DEBUG=INFO")
    assert request(job)["Environment"]["HEADRACE_MPI_OPTIONS"] == "-x NCCL_DEBUG=INFO"
    theirs = request(job, distribution="mpi")
    assert json.loads(theirs["HyperParameters"]["sagemaker_mpi_custom_mpi_options"]) == "-x NCCL_DEBUG=INFO"
    assert "HEADRACE_MPI_OPTIONS" not in theirs["Environment"]
    with pytest.raises(InputError, match="does not support quotes"):
        request(spec(custom_mpi_options="-x 'A=b c'"), distribution="mpi")


def test_channels_are_bound_to_their_groups():
    job = spec(channels=(Channel("training", "s3://b/x", ("data_group",)), Channel("all", "s3://b/y")))
    made = request(job, input_mode="FastFile", sharded_channels=("all",))
    training, everywhere = made["InputDataConfig"]
    assert training["InputMode"] == "FastFile"
    assert training["DataSource"]["S3DataSource"]["InstanceGroupNames"] == ["data_group"]
    assert training["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "FullyReplicated"
    assert everywhere["DataSource"]["S3DataSource"]["InstanceGroupNames"] == ["data_group", "dnn_group"]
    assert everywhere["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "ShardedByS3Key"


def groups_named(made):
    sources = {each["ChannelName"]: each["DataSource"]["S3DataSource"] for each in made["InputDataConfig"]}
    return {name: source.get("InstanceGroupNames") for name, source in sources.items()}


def test_either_all_channels_name_groups_or_none_those_that_headrace_adds_included():
    some = (Channel("a", "s3://b/a", ("data_group",)), Channel("b", "s3://b/b"))
    everybody = ["data_group", "dnn_group"]
    made = request(spec(channels=some), enable_network_isolation=True)
    assert groups_named(made) == {"a": ["data_group"], "b": everybody, "code": everybody}
    made = request(spec(channels=some[1:]), enable_network_isolation=True)
    assert groups_named(made) == {"b": None, "code": None}


def test_traffic_is_encrypted_when_there_is_more_than_one_host_unless_told_otherwise():
    alone = spec(groups=(InstanceGroup("homogeneousCluster", "ml.g5.xlarge", 1),), tf_data_mode="local")
    assert request()["EnableInterContainerTrafficEncryption"] is True
    assert request(alone)["EnableInterContainerTrafficEncryption"] is False
    assert request(encrypt_inter_container_traffic=False)["EnableInterContainerTrafficEncryption"] is False


def test_spot_jobs_wait_and_keep_checkpoints():
    made = request(spot=True, max_run_s=1000)
    assert made["EnableManagedSpotTraining"] is True
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 1000, "MaxWaitTimeInSeconds": 4600}
    assert made["CheckpointConfig"]["S3Uri"] == "s3://bucket/headrace/job-1/checkpoints"
    assert made["CheckpointConfig"]["LocalPath"] == "/opt/ml/checkpoints"


def test_a_vpc_job_names_subnets_and_security_groups():
    made = request(subnets=("subnet-1", "subnet-2"), security_group_ids=("sg-1",))
    assert made["VpcConfig"] == {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}


def test_under_network_isolation_the_source_dir_comes_as_a_channel():
    made = request(enable_network_isolation=True)
    assert [channel["ChannelName"] for channel in made["InputDataConfig"]] == ["code"]
    directory = json.loads(made["HyperParameters"]["sagemaker_submit_directory"])
    assert directory == "/opt/ml/input/data/code/sourcedir.tar.gz"


def test_the_secret_is_in_the_environment_and_nowhere_else():
    made = request()
    assert made["Environment"]["HEADRACE_JOB_SECRET"] == "secret"
    assert "HEADRACE_JOB_SECRET" not in json.dumps(made["HyperParameters"])


def test_metric_definitions_find_the_values_in_the_launchers_log_lines():
    line = "algo-3 rank0 | " + format_event("step", step=20, step_ms=12.345, samples_per_s=5187.2, input_bound=0.25)
    found = {each["Name"]: re.search(each["Regex"], line) for each in metric_definitions()}
    assert {name: match[1] for name, match in found.items() if match} == {
        "headrace:step_ms": "12.35",
        "headrace:samples_per_s": "5187",
        "headrace:input_bound_share": "0.25",
    }
    ideal = next(each for each in metric_definitions() if each["Name"] == "headrace:ideal_step_ms")
    assert re.search(ideal["Regex"], format_event("ideal_step", step_ms=0.00005))[1] == "5e-05"


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"channels": (Channel("t", "/data"),)}, {}, "SageMaker reads s3://"),
        ({}, {"keep_alive_period_s": 60}, "no warm pools for instance groups"),
        ({}, {"sharded_channels": ("x",)}, "is no channel of this job"),
        ({}, {"role_arn": "nobody"}, "no role ARN"),
        ({}, {"max_run_s": 0}, "--max_run is 0"),
        ({}, {"max_wait_s": 10}, "add --spot"),
        ({}, {"spot": True, "keep_alive_period_s": 60}, "no warm pools for spot hosts"),
        ({}, {"spot": True, "max_wait_s": 10}, "is less than --max_run"),
        ({}, {"subnets": ("subnet-1",)}, "needs both"),
        ({}, {"output_s3_uri": "bucket/x"}, "no S3 location"),
        ({}, {"output_s3_uri": "s3://bucket/exp#1"}, "no S3 location"),
        ({}, {"output_s3_uri": "s3://bucket//exp"}, "no S3 location"),
        ({"hyperparameters": {"x": "v" * 2501}}, {}, "at most 2500"),
        ({"groups": (*GROUPS[:1], InstanceGroup("dnn_group", "ml.c99.large", 1))}, {}, "ml.c99.large"),
    ],
)
def test_what_sagemaker_would_refuse_is_refused_here(changes, options, said):
    with pytest.raises(InputError, match=re.escape(said)):
        request(spec(**changes), **options)


def test_an_unknown_instance_type_is_told_with_the_nearest_one():
    check_instance_type("ml.c5.18xlarge")
    with pytest.raises(InputError, match=r"did you mean ml\.c5\.18xlarge"):
        check_instance_type("ml.c5.18xlargee")
