"""After a stop request, a job waits for a checkpoint if it can make one, but only for a limited time."""

import io

import pytest
from headrace.cluster.run_files import STOP_REQUEST
from headrace.events import CHECKPOINTS_ON_REQUEST, Event
from headrace.host.leader.decide import StopRequest
from headrace.host.log import HostLog

ASKED = {"algo-1": "", "algo-2": "SIGTERM"}
DUE = ("algo-2", "SIGTERM")


@pytest.fixture
def stop(tmp_path):
    return StopRequest(tmp_path, 90, HostLog("algo-1", io.StringIO()))


def test_without_a_request_nothing_is_due(stop):
    assert stop.due({"algo-1": "", "algo-2": ""}, True, 0) is None


def test_a_job_with_nothing_to_save_ends_at_once(stop, tmp_path):
    assert stop.due(ASKED, True, 0) == DUE  # the script takes no checkpoints on request
    stop.take_event(Event(CHECKPOINTS_ON_REQUEST, {}))
    assert stop.due(ASKED, False, 0) == DUE  # no step was made yet
    assert not (tmp_path / STOP_REQUEST).exists()


def test_a_checkpoint_is_asked_for_and_waited_for(stop, tmp_path):
    stop.take_event(Event(CHECKPOINTS_ON_REQUEST, {}))
    stop.take_event(Event("checkpoint", {}))  # an earlier checkpoint does not count
    assert stop.due(ASKED, True, 0) is None
    assert (tmp_path / STOP_REQUEST).exists()
    assert stop.due(ASKED, True, 1) is None
    stop.take_event(Event("checkpoint", {}))
    assert stop.due(ASKED, True, 2) == DUE


def test_the_wait_for_a_checkpoint_has_an_end(stop):
    stop.take_event(Event(CHECKPOINTS_ON_REQUEST, {}))
    assert stop.due(ASKED, True, 10) is None
    assert stop.due(ASKED, True, 100) is None
    assert stop.due(ASKED, True, 101) == DUE
