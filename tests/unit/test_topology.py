"""Each host's role is read from every form that SageMaker uses, and contradictions are clear errors."""

import json

import pytest
from headrace.cluster.sagemaker import read_topology, topology_from
from headrace.cluster.topology import natural_key
from headrace.errors import InputError


def hetero(**changes):
    config = {
        "current_host": "algo-3",
        "current_instance_type": "ml.p4d.24xlarge",
        "current_group_name": "dnn_group",
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": [
            {"instance_group_name": "dnn_group", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-3"]},
            {"instance_group_name": "data_group", "instance_type": "ml.c5.18xlarge", "hosts": ["algo-2", "algo-1"]},
        ],
        "network_interface_name": "eth0",
    }
    return config | changes


def homogeneous(**changes):
    hosts = ["algo-1", "algo-2"]
    group = {"instance_group_name": "homogeneousCluster", "instance_type": "ml.g5.xlarge", "hosts": hosts}
    return {
        "current_host": "algo-1",
        "current_instance_type": "ml.g5.xlarge",
        "current_group_name": "homogeneousCluster",
        "hosts": hosts,
        "instance_groups": [group],
    } | changes


def test_roles_leader_and_dispatcher_of_a_heterogeneous_job():
    topology = topology_from(hetero(), "test")
    assert [host.name for host in topology.data_hosts] == ["algo-1", "algo-2"]
    assert topology.leader.name == "algo-3"
    assert topology.dispatcher_host.name == "algo-1"
    assert topology.is_hetero and topology.is_leader


def test_a_homogeneous_job_has_dnn_hosts_only():
    topology = topology_from(homogeneous(), "test")
    assert [host.role for host in topology.hosts] == ["dnn", "dnn"]
    assert topology.dispatcher_host == topology.leader == topology.hosts[0]
    assert not topology.is_hetero


def test_a_config_without_groups_is_homogeneous():
    config = homogeneous()
    del config["instance_groups"], config["current_group_name"]
    assert topology_from(config, "test").leader.instance_type == "ml.g5.xlarge"


def test_hosts_come_in_natural_order_whatever_the_files_order():
    names = [f"algo-{number}" for number in (10, 2, 1, 12, 3)]
    config = homogeneous(hosts=names, current_host="algo-10")
    config["instance_groups"][0]["hosts"] = list(reversed(names))
    topology = topology_from(config, "test")
    assert [host.name for host in topology.hosts] == ["algo-1", "algo-2", "algo-3", "algo-10", "algo-12"]
    assert sorted(["b2", "b10", "a", ""], key=natural_key) == ["", "a", "b2", "b10"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (hetero(current_host="algo-9"), "current_host 'algo-9' is not among the hosts"),
        (hetero(current_host=None), "current_host None is not among the hosts"),
        (hetero(instance_groups=[1]), "does not say which hosts and groups"),
        ([], "does not say which hosts and groups"),
    ],
)
def test_an_inconsistency_is_an_error_that_says_what_was_read_where(config, said):
    with pytest.raises(InputError) as error:
        topology_from(config, "resourceconfig.json")
    assert said in str(error.value)
    assert "resourceconfig.json" in str(error.value)


def with_groups(*names_and_hosts):
    groups = [{"instance_group_name": n, "instance_type": "ml.c5.xlarge", "hosts": h} for n, h in names_and_hosts]
    return hetero(instance_groups=groups, current_group_name=None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (with_groups(("data_group", ["algo-1", "algo-2"]), ("gpus", ["algo-3"])), "unknown instance group 'gpus'"),
        (with_groups(("data_group", ["algo-1", "algo-2", "algo-3"])), "no host in instance group 'dnn_group'"),
        (with_groups(("data_group", ["algo-3"]), ("dnn_group", [])), "no host in instance group 'dnn_group'"),
    ],
)
def test_groups_that_make_no_job_are_refused(config, said):
    with pytest.raises(InputError) as error:
        topology_from(config, "test")
    assert said in str(error.value)


def test_the_environment_stands_in_for_a_missing_file(tmp_path):
    config = hetero()
    environ = {
        "SM_HOSTS": json.dumps(config["hosts"]),
        "SM_CURRENT_HOST": "algo-2",
        "SM_CURRENT_INSTANCE_GROUP": "data_group",
        "SM_INSTANCE_GROUPS_DICT": json.dumps({g["instance_group_name"]: g for g in config["instance_groups"]}),
    }
    topology = read_topology(tmp_path, environ)
    assert topology.current.name == "algo-2"
    assert topology.describe()["groups"] == {"data_group": ["algo-1", "algo-2"], "dnn_group": ["algo-3"]}


def test_the_file_wins_over_the_environment(tmp_path):
    # Under MPI the toolkit forwards the leader's SM_CURRENT_HOST to every host.
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps(hetero(current_host="algo-1", current_group_name=None)))
    topology = read_topology(tmp_path, {"SM_HOSTS": '["algo-3"]', "SM_CURRENT_HOST": "algo-3"})
    assert topology.current.name == "algo-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not valid JSON"), ("\udcff", "Cannot read"), ("[]", "does not say which hosts and groups")],
)
def test_a_broken_file_is_named(tmp_path, text, said):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=r"resourceconfig\.json") as error:
        read_topology(tmp_path, {})
    assert said in str(error.value)


def test_nothing_to_read_from_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"--no-is_cloud_job"):
        read_topology(tmp_path, {})


def test_the_table_shows_every_host_and_marks_this_one():
    servers = {"algo-1": ["dispatcher", "2 workers"], "algo-3": ["2 workers"]}
    table = topology_from(hetero(), "test").table(lambda host: servers.get(host.name, []))
    assert "algo-3 *" in table
    assert "dispatcher, 2 workers" in table
    assert "2 workers, ranks, mpirun (leader)" in table


@pytest.mark.parametrize(("parameters", "leader"), [("{}", "algo-9"), ('{"sagemaker_mpi_enabled": true}', "algo-10")])
def test_where_the_toolkit_starts_mpi_its_first_dnn_host_leads(parameters, leader, tmp_path):
    hosts = ["algo-10", "algo-9"]  # sorted as text, as SageMaker does
    path = tmp_path / "input" / "config" / "resourceconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(homogeneous(hosts=hosts, current_host="algo-9", instance_groups=[])))
    topology = read_topology(tmp_path, {"SM_FRAMEWORK_PARAMS": parameters})
    assert topology.leader.name == leader
    assert sorted(host.name for host in topology.dnn_hosts) == hosts
