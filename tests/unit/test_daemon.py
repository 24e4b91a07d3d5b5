"""A host starts an MPI daemon once, only for the leader's mpirun, and only with arguments that Open MPI needs."""

from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.host.inbox import Inbox, MpiDaemonAsked
from headrace.host.mpi.orted import MpiDaemon, checked_arguments
from hypothesis import given
from hypothesis import strategies as st

LEADER = {"10.77.0.2"}
WORK_DIR = Path("/opt/ml/headrace")
AGENT = f"/bin/sh {WORK_DIR}/mpi_agent"
# Arguments that mpirun 4.1.8 sent from one host to another.
SAID = """
-mca orte_leave_session_attached 1 -mca ess env -mca ess_base_jobid 1727725568 -mca ess_base_vpid 1
-mca ess_base_num_procs 2 -mca orte_node_regex algo-[1:2-3]@0(2) -mca orte_hnp_uri 1727725568.0;tcp://10.77.0.2:53335
--mca orte_tmpdir_base /opt/ml/headrace --mca btl_vader_backing_directory /opt/ml/headrace --mca mpi_yield_when_idle 1
--mca orte_base_help_aggregate 0 --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0
--mca plm_rsh_no_tree_spawn 1 -mca plm rsh -mca orte_tag_output 1 -mca rmaps_base_oversubscribe 1
-mca rmaps_base_mapping_policy slot -mca hwloc_base_binding_policy none -mca pmix ^s1,s2,cray,isolated
"""
REAL = SAID.split()
URI = REAL.index("orte_hnp_uri") + 1


def test_what_mpirun_asks_for_is_taken():
    checked = checked_arguments([*REAL, "-mca", "plm_rsh_agent", AGENT], LEADER, WORK_DIR)
    assert checked == ["-mca" if each == "--mca" else each for each in [*REAL, "-mca", "plm_rsh_agent", AGENT]]


def test_programs_and_folders_are_the_hosts_own():
    mine = checked_arguments([*REAL, "-mca", "plm_rsh_agent", "/tmp/evil"], LEADER, Path("/here"))
    assert mine[-1] == "/bin/sh /here/mpi_agent"
    assert mine[mine.index("orte_tmpdir_base") + 1] == mine[mine.index("btl_vader_backing_directory") + 1] == "/here"


def test_what_users_tune_is_taken():
    tuning = ["-mca", "btl_tcp_links", "4", "-mca", "btl_tcp_if_exclude", "172.17.0.0/16"]
    assert checked_arguments([*REAL, *tuning], LEADER, WORK_DIR)[-len(tuning) :] == tuning


@pytest.mark.parametrize(
    "extra",
    [
        ["-mca", "mca_base_component_path", "/tmp/evil"],
        ["-mca", "mca_component_path", "/tmp/evil"],
        ["-mca", "orte_launch_agent", "evil"],
        ["-mca", "btl_evil_path", "x"],
        ["-mca", "pmix_base_file", "x"],
        ["-mca", "btl_tcp_if_include", "eth0; evil"],
        ["-mca", "plm_base_verbose", "100"],
    ],
    ids=" ".join,
)
def test_what_a_daemon_does_not_need_is_left_out(extra):
    assert checked_arguments([*REAL, *extra], LEADER, WORK_DIR) == checked_arguments(REAL, LEADER, WORK_DIR)


@pytest.mark.parametrize(
    "extra",
    [
        ["-mca", "ess", "tool"],
        ["-mca", "orte_hnp_uri", "1.0;tcp://10.77.0.66:5"],
        ["-mca", "orte_hnp_uri", "file:/tmp/evil"],
        ["--prefix", "/tmp/evil", "x"],
        ["--debug-devel"],
        ["-mca", "ess_base_vpid"],
    ],
    ids=" ".join,
)
def test_a_daemon_of_somebody_else_is_refused(extra):
    with pytest.raises(InputError, match="the MPI daemon"):
        checked_arguments([*REAL, *extra], LEADER, WORK_DIR)


def test_it_reports_to_the_leaders_own_addresses_among_those_that_are_given():
    given = "1859.0;tcp://10.77.0.2,10.77.0.66:60745;tcp6://[fd00::2]:35911;tcp6://[fd00::66]:1"
    checked = checked_arguments([*REAL[:URI], given, *REAL[URI + 1 :]], LEADER | {"fd00::2"}, WORK_DIR)
    assert checked[URI] == "1859.0;tcp://10.77.0.2:60745;tcp6://[fd00::2]:35911"


def test_a_daemon_that_reports_to_nobody_is_refused():
    with pytest.raises(InputError, match="lack orte_hnp_uri"):
        checked_arguments(REAL[: URI - 2] + REAL[URI + 1 :], LEADER, WORK_DIR)


def test_a_host_starts_one_daemon_in_its_life():
    inbox = Inbox()
    daemon = MpiDaemon("127.0.0.1", WORK_DIR, inbox)
    mine = [*REAL[:URI], "1.0;tcp://127.0.0.1:5", *REAL[URI + 1 :]]
    assert daemon.ask({"arguments": REAL}).keys() == {"error"}
    assert daemon.ask({"arguments": mine}) == {}
    assert "already" in daemon.ask({"arguments": mine})["error"]
    assert [type(happening) for _, happening in inbox.take(0)] == [MpiDaemonAsked]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values | st.lists(st.sampled_from(REAL) | st.text()))
def test_whatever_is_said_is_checked_or_refused(arguments):
    try:
        checked = checked_arguments(arguments, LEADER, WORK_DIR)
    except InputError:
        return
    assert checked[::3] == ["-mca"] * (len(checked) // 3)
