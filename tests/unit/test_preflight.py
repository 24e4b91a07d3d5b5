"""A preflight chooses the links to try, and prints a table. Tests with real ranks are in tests/integration."""

import math

from headrace.events import PREFLIGHT_FAILED, PREFLIGHT_STARTED, Event
from headrace.host.leader.decide import RankWatch
from headrace.host.leader.watchdog import diagnose_start
from headrace.host.mpi.output import RankLog
from headrace.job.settings import Settings
from headrace.outcome import RootCause
from headrace.rank.preflight.checks import ALL_PAIRS_HOSTS, links
from headrace.rank.preflight.run import Link, table

from tests.unit.test_mpi import topology

GOOD = {"latency_s": 0.0001, "bytes_per_s": 1e9}


def link(a, b, latency_s=0.0001, bytes_per_s=1e9):
    return Link(a, b, f"algo-{a}", f"algo-{b}", latency_s, bytes_per_s)


def test_every_pair_of_hosts_is_tried_by_itself_and_then_all_hosts_within_at_once():
    assert links(["a", "a", "a", "b", "b", "c"]) == [[(0, 3)], [(0, 5)], [(3, 5)], [(0, 1), (3, 4)], [(0, 2)]]
    assert links(["a"]) == []


def test_of_many_hosts_each_is_tried_with_its_neighbour_and_with_the_first():
    hosts = [f"algo-{number}" for number in range(3 * ALL_PAIRS_HOSTS)]
    tried = [pair for pairs in links(hosts) for pair in pairs]
    assert len(tried) < 2 * len(hosts)
    assert {rank for pair in tried for rank in pair} == set(range(len(hosts)))
    assert (4, 5) in tried and (0, 20) in tried


def test_a_link_is_slow_by_itself_or_beside_the_others():
    assert link(0, 1, latency_s=0.02).is_slow([])
    assert link(0, 1, bytes_per_s=5e7).is_slow([])
    fast, slow = [link(0, 1), link(0, 2), link(0, 3)], link(1, 2, bytes_per_s=2e8)
    assert slow.is_slow([*fast, slow]) and not fast[0].is_slow([*fast, slow])
    assert not Link(0, 1, "algo-1", "algo-1", 1.0, 1.0).is_slow([]), "a link within a host counts as slow"


def test_the_table_tells_hosts_links_and_collectives():
    ranks = [{"rank": number, "host": f"algo-{number // 2}", "cpus": 8, "mpi": "Open MPI"} for number in range(4)]
    text = "\n".join(table(ranks, [link(0, 2, latency_s=0.02)], {"allreduce": (16_000_000, 0.01)}))
    assert "ranks: 4, hosts: 2" in text
    assert "algo-1  2, 3" in text
    assert "20.000 ms  1,000 MB/s   <- slow" in text
    assert "16,000,000    10.00 ms  1,600 MB/s" in text


def test_the_rank_that_a_preflight_names_is_the_root_cause():
    log = RankLog("algo-1", topology(["algo-1", "algo-2"]).hosts, 2)
    log.label("[1,0]<stdout>:headrace event=preflight_failed rank=3 host= error=rank%203%20gave%20no%20sign")
    cause = log.root_cause(RootCause("algo-1", "mpirun", "exited with 1"))
    assert (cause.host, cause.process, cause.message) == ("algo-2", "rank3", "preflight: rank 3 gave no sign")


def test_a_preflight_that_never_begins_is_late_and_the_suspended_process_is_named():
    watch = RankWatch(Settings(preflight="first", preflight_timeout_s=5), ranks=4)
    assert watch.starts_by == math.inf
    watch.begin(100)
    assert watch.starts_by == 105
    cause = diagnose_start("algo-1", 5, {"algo-1": {"suspended": ["worker"]}, "algo-2": {"suspended": ["rank3"]}})
    assert (cause.host, cause.process) == ("algo-2", "rank3")
    assert "within 5 s (preflight_timeout_s)" in diagnose_start("algo-1", 5, {}).message
    watch.take_event(Event(PREFLIGHT_STARTED, {}), 106)
    assert watch.starts_by == math.inf


def test_ranks_that_do_not_end_after_a_failed_preflight_are_not_waited_for():
    watch = RankWatch(Settings(preflight="first"), ranks=4)
    assert watch.aborts_by == math.inf
    watch.take_event(Event(PREFLIGHT_FAILED, {}), 100)
    assert watch.aborts_by == 105
