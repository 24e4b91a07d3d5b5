"""Hyperparameters and environment become settings, or an error of one clear line."""

import json
from dataclasses import fields

import pytest
from headrace.backends.sagemaker.cloud_options import FLAGS, CloudOptions, given_flags
from headrace.cli.flags import build_parser
from headrace.cluster.addresses import Endpoint, encode_endpoints
from headrace.errors import InputError
from headrace.host.script_arguments import script_arguments
from headrace.job.settings import HYPERPARAMETERS, Settings, describe_settings, read_settings
from headrace.rank.context import TrainerContext


def read(*argv, **environ):
    return read_settings(argv, environ)


def test_hyperparameters_of_the_script_are_left_alone():
    settings = read("--learning_rate", "0.1", "--num_of_data_workers", "3", "--tf_data_mode", "service")
    assert settings.num_of_data_workers == 3
    assert settings.tf_data_mode == "service"


def test_a_value_that_looks_like_a_setting_is_the_scripts():
    assert read("--note", "--lease_s", "--num_of_data_workers=3", "-k", "x=y").num_of_data_workers == 3


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num_of_data_workers", "many"], "invalid int value"),
        (["--num_of_data_workers", "-1"], "num_of_data_workers is -1"),
        (["--lease_s", "0"], "lease_s is 0.0"),
        (["--lease_s", "1"], "expected 5 or more"),
        (["--lease_s", "nan"], "lease_s is nan"),
        (["--stall_timeout_s", "inf"], "1e9 switches the time limit off"),
        (["--startup_timeout_s", "1e12"], "1e9 switches the time limit off"),
        (["--tf_data_mode", "service", "--num_of_data_workers", "0"], "needs num_of_data_workers 1 or more"),
        (["--tf_data_mode", "cloud"], "tf_data_mode is 'cloud'"),
        (["--training_script", "../evil.py"], "expected a path inside"),
        (["--epochs"], "'--epochs' is not the beginning of a --NAME VALUE pair"),
        (["epochs", "3"], "'epochs' is not the beginning"),
    ],
)
def test_wrong_values_are_one_line(argv, said):
    with pytest.raises(InputError) as error:
        read(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_endpoints_come_from_the_environment_or_are_the_hosts_names():
    endpoints = {"algo-1": Endpoint("127.0.0.1", "127.0.0.1", 6001)}
    settings = read(HEADRACE_ENDPOINTS=encode_endpoints(endpoints))
    assert settings.endpoint("algo-1") == endpoints["algo-1"]
    assert settings.endpoint("algo-2").address == "algo-2"
    with pytest.raises(InputError, match="HEADRACE_ENDPOINTS"):
        read(HEADRACE_ENDPOINTS='{"algo-1": 3}')


def test_the_secret_is_not_shown():
    assert "hunter2" not in repr(Settings(secret="hunter2"))


def test_the_trainers_context_survives_the_environment():
    context = TrainerContext("service", "algo-1:6000", "job")
    assert TrainerContext.from_environ(context.environ()) == context


def test_without_a_launcher_training_is_local():
    assert TrainerContext.from_environ({}).tf_data_mode == "local"


@pytest.mark.parametrize("environ", [{"HEADRACE_TF_DATA_MODE": "x"}, {"HEADRACE_TF_DATA_MODE": "service"}])
def test_a_wrong_trainer_environment_is_refused(environ):
    with pytest.raises(InputError, match="HEADRACE_"):
        TrainerContext.from_environ(environ)


def test_a_hyperparameter_may_have_any_name_without_being_taken_for_ours():
    assert read("-h", "64", "--help", "me", "--describe", "yes").num_of_data_workers == 1


@pytest.mark.parametrize("port", [-1, 65536])
def test_the_metrics_port_is_a_port(port):
    with pytest.raises(InputError, match="metrics_port"):
        Settings(metrics_port=port)
    assert Settings(metrics_port=9500).metrics_port == 9500


@pytest.mark.parametrize(
    ("known", "reach"),
    [(True, ["--epochs", "2", "-x", "1"]), (False, ["--epochs", "2", "-x", "1", "--model_dir", "m"])],
)
def test_a_script_gets_what_the_user_gave_and_neither_settings_nor_what_sagemaker_adds(tmp_path, known, reach):
    """The toolkit's MPI adds --model_dir. headrace removes flags that are not in hyperparameters.json. If this file is
    missing, the script gets --model_dir too."""
    file = tmp_path / "hyperparameters.json"
    if known:
        file.write_text(json.dumps({"epochs": "2", "x": "1", "lease_s": "9", "_tuning_objective_metric": "loss"}))
    argv = ["--_tuning_objective_metric", "loss", "--epochs", "2", "-x", "1", "--lease_s", "9", "--model_dir", "m"]
    assert script_arguments(argv, file) == reach


def test_every_hyperparameter_says_what_it_is_and_its_default_is_in_its_range():
    described = describe_settings([name for name in HYPERPARAMETERS if name.endswith("_s")])
    assert "lease_s=10 " in described and "has not been reached" in described
    for each in fields(Settings):
        assert bool(each.metadata.get("text")) == (each.name in HYPERPARAMETERS), each.name
    assert "base_dir" not in HYPERPARAMETERS and "metrics_port" in HYPERPARAMETERS


def test_a_field_of_the_cloud_options_with_a_flag_reaches_the_request_from_it():
    arguments = build_parser().parse_args(["--max_run=60", "--volume_size=7", "--subnets", "a", "b", "--spot"])
    given = given_flags(arguments)
    assert given == {"max_run_s": 60, "volume_size_gb": 7, "subnets": ("a", "b"), "spot": True}
    assert set(FLAGS) <= {each.name for each in fields(CloudOptions)}
