"""What a preflight tries, and what its table says; the ranks themselves are in tests/integration."""

from headrace.events import Event
from headrace.host import mpi
from headrace.host.preflight.checks import ALL_PAIRS_HOSTS, links
from headrace.host.preflight.table import Link, table
from headrace.host.watchdog import PreflightStart, diagnose_start
from headrace.settings import Settings

from tests.unit.test_mpi import topology

GOOD = {"latency_s": 0.0001, "bytes_per_s": 1e9}


def link(a, b, latency_s=0.0001, bytes_per_s=1e9):
    return Link(a, b, f"algo-{a}", f"algo-{b}", latency_s, bytes_per_s)


def test_every_pair_of_hosts_is_tried_and_every_rank_within_its_host():
    assert links(["a", "a", "b", "b", "c"]) == [(0, 2), (0, 4), (2, 4), (0, 1), (2, 3)]


def test_of_many_hosts_each_is_tried_with_its_neighbour_and_with_the_first():
    hosts = [f"algo-{number}" for number in range(3 * ALL_PAIRS_HOSTS)]
    tried = links(hosts)
    assert len(tried) < 2 * len(hosts)
    assert {rank for pair in tried for rank in pair} == set(range(len(hosts)))
    assert (4, 5) in tried and (0, 20) in tried


def test_a_link_is_slow_by_itself_or_beside_the_others():
    assert link(0, 1, latency_s=0.02).is_slow([])
    assert link(0, 1, bytes_per_s=5e7).is_slow([])
    fast, slow = [link(0, 1), link(0, 2), link(0, 3)], link(1, 2, bytes_per_s=2e8)
    assert slow.is_slow([*fast, slow]) and not fast[0].is_slow([*fast, slow])
    assert not Link(0, 1, "algo-1", "algo-1", 1.0, 1.0).is_slow([]), "within a host there is no network"


def test_the_table_tells_hosts_links_and_collectives():
    ranks = [{"rank": number, "host": f"algo-{number // 2}", "cpus": 8, "mpi": "Open MPI"} for number in range(4)]
    text = "\n".join(table(ranks, [link(0, 2, latency_s=0.02)], {"allreduce": (16_000_000, 0.01)}))
    assert "4 ranks on 2 hosts" in text
    assert "algo-1  2, 3" in text
    assert "20.000 ms  1,000 MB/s   <- slow" in text
    assert "16,000,000    10.00 ms  1,600 MB/s" in text


def test_the_rank_that_a_preflight_names_is_the_root_cause():
    log = mpi.RankLog("algo-1", topology(["algo-1", "algo-2"]).hosts, 2)
    log.label("[1,0]<stdout>:headrace event=preflight_failed rank=3 error=rank%203%20gave%20no%20sign")
    cause = log.root_cause(mpi.RootCause("algo-1", "mpirun", "exited with 1"))
    assert (cause.host, cause.role, cause.message) == ("algo-2", "rank3", "preflight: rank 3 gave no sign")


def test_a_preflight_that_never_begins_is_late_and_the_suspended_process_is_named():
    start = PreflightStart(Settings(preflight="first", preflight_timeout_s=5))
    assert start.late_s(100) is None
    start.begin(100)
    assert (start.late_s(104), start.late_s(106)) == (None, 5)
    cause = diagnose_start("algo-1", 5, {"algo-2": {"suspended": ["rank3"]}})
    assert (cause.host, cause.role) == ("algo-2", "rank3")
    assert "within 5 s (preflight_timeout_s)" in diagnose_start("algo-1", 5, {}).message
    start.take_event(Event(mpi.PREFLIGHT_STARTED, {}))
    assert start.late_s(1000) is None
