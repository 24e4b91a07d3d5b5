"""If SageMaker's own `train` command starts a job from packed source, the job behaves as on the simulated cluster."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import SCRIPTS
from tests.faults.breakage import STEADY, TOYS
from tests.support import copy_source
from tests.toolkit.cases import CASES, GIVEN, SIMULATED, WAYS, play
from tests.toolkit.hosts import why_not

AT_ONCE = 3
"""Maximum number of jobs that run at once. It is more than one, since the toolkit sleeps half a minute at a job's end.
It is small, since waiting ranks use processors."""
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    """Dict of the results that the selected tests need. Key: (name of a case, way to run the case). Value: a future."""
    wanted = [item.callspec.params for item in request.session.items if "played" in getattr(item, "fixturenames", ())]
    ways = {(each["name"], way): None for each in wanted for way in (SIMULATED, each["way"])}
    ways = [(name, way) for name, way in ways if way in CASES[name].ways]
    folder = tmp_path_factory.mktemp("toolkit")
    toys = *TOYS.glob("*.py"), SCRIPTS / "failing.py", Path(__file__).with_name("arguments.py")
    sources = {True: copy_source(folder / "toys", *toys), False: copy_source(folder / "source", STEADY)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            (name, way): pool.submit(play, CASES[name], way, sources[CASES[name].toys], folder / f"{number}-{way}")
            for number, (name, way) in enumerate(ways)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, case in CASES.items() for way in case.ways])
def test_a_case_ends_as_the_table_says(name, way, played):
    case, it = CASES[name], played[name, way].result()
    if not case.cause:
        assert set(it.exit_codes.values()) == {0}, it.logs
        assert it.causes == {} and it.summary["outcome"] == "succeeded"
        assert len(list(it.folder.glob("**/preflight.json"))) == ("--preflight" in case.flags)
        return
    assert 0 not in it.exit_codes.values(), it.logs
    assert {(cause["host"], cause["role"]) for cause in it.causes.values()} == {case.cause}, it.logs
    assert set(it.causes) >= set(it.exit_codes)
    if it.summary:
        assert it.summary["outcome"] == "failed"
        assert (it.summary["root_cause"]["host"], it.summary["root_cause"]["role"]) == case.cause


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name, case in CASES.items() if SIMULATED in case.ways for way in case.ways if way != SIMULATED],
)
def test_the_toolkit_and_the_simulated_cluster_agree(name, way, played):
    real, simulated = played[name, way].result(), played[name, SIMULATED].result()
    assert {host: bool(code) for host, code in real.exit_codes.items()}.items() <= {
        host: bool(code) for host, code in simulated.exit_codes.items()
    }.items()
    assert _essence(real.causes) == {host: _essence(simulated.causes)[host] for host in real.causes}
    assert (real.summary is None) == (simulated.summary is None)
    if real.summary:
        theirs = {key: value for key, value in simulated.summary.items() if key not in ("interrupted", "simulated")}
        assert _fields(real.summary) == _fields(theirs)
        for key in ("outcome", "tf_data_mode", "is_hetero", "world_size", "global_batch_size"):
            assert real.summary[key] == theirs[key], key
        if not CASES[name].cause:
            assert (real.summary["epochs"], real.summary["steps"]) == (theirs["epochs"], theirs["steps"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["hyperparameters"])
def test_hyperparameters_reach_every_rank_as_they_were_given_and_nothing_else_does(name, way, played):
    folder = played[name, way].result().folder
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("algo-*/output/data/arguments-*.json"))]
    assert len(found) == 2, played[name, way].result().logs
    for arguments in found:
        pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert {flag.lstrip("-"): value for flag, value in pairs.items()} == {**GIVEN, "epochs": "2"}


def _essence(causes):
    return {
        host: {key: value for key, value in cause.items() if key in ("host", "role", "signal", "exit_code")}
        for host, cause in causes.items()
    }


def _fields(record, deep=3):
    """Return the keys of a record and of the records within it, `deep` levels at most. Leave out `cpu_s`."""
    if not isinstance(record, dict) or not deep:
        return None
    return {key: _fields(value, deep - 1) for key, value in record.items() if key != "cpu_s"}
