"""The supervisor decides which processes to restart; the tests use a fake clock and fake processes."""

import io

import pytest
from headrace.host.log import HostLog
from headrace.host.supervisor import ChildSpec, Supervisor


class FakeProcess:
    stdout = None

    def __init__(self, pid):
        self.pid = pid
        self.code = None

    def poll(self):
        return self.code


class Machine:
    """A supervisor with fake processes and a fake clock. Only the test ends a process or moves the clock."""

    def __init__(self, max_restarts=2):
        self.now = 0.0
        self.started = []
        self.out = io.StringIO()
        log = HostLog("algo-1", self.out)
        self.supervisor = Supervisor(log, max_restarts, 1.0, spawn=self.spawn, clock=lambda: self.now)

    def spawn(self, spec):
        self.started.append(FakeProcess(100 + len(self.started)))
        return self.started[-1]

    def start(self, tmp_path, restart):
        return self.supervisor.start(ChildSpec("worker", "worker", ["x"], {}, tmp_path, restart=restart))

    def kill(self, code=-9):
        self.started[-1].code = code

    def pass_time(self, seconds):
        self.now += seconds
        return self.supervisor.poll()


@pytest.fixture
def machine():
    return Machine()


def test_a_server_that_dies_is_started_again_after_a_pause(machine, tmp_path):
    machine.start(tmp_path, restart=True)
    machine.kill()
    assert machine.pass_time(0) == []
    assert len(machine.started) == 1
    assert machine.pass_time(0.6) == []
    assert len(machine.started) == 2
    assert "event=restarted role=worker pid=101" in machine.out.getvalue()
    assert machine.supervisor.restarts() == {"worker": 1}


def test_the_pause_grows_with_each_restart(machine, tmp_path):
    machine.start(tmp_path, restart=True)
    machine.kill()
    machine.pass_time(0)
    machine.pass_time(0.6)
    machine.kill()
    machine.pass_time(0)
    machine.pass_time(0.6)
    assert len(machine.started) == 2
    machine.pass_time(0.6)
    assert len(machine.started) == 3


def test_a_server_that_keeps_dying_is_given_up_with_its_root_cause(machine, tmp_path):
    machine.start(tmp_path, restart=True)
    ended = []
    for _ in range(10):
        machine.kill()
        ended += machine.pass_time(0)
        ended += machine.pass_time(20)
    (end,) = ended
    cause = end.root_cause("algo-1")
    assert (cause.process, cause.signal, cause.pid) == ("worker", "SIGKILL", 102)
    assert cause.message == "was killed by SIGKILL after 2 restarts"


def test_a_trainer_is_never_started_again(machine, tmp_path):
    machine.start(tmp_path, restart=False)
    machine.kill(code=3)
    (end,) = machine.pass_time(0)
    assert end.root_cause("algo-1").exit_code == 3
    assert machine.pass_time(100) == []
    assert len(machine.started) == 1


def test_a_log_on_a_full_disk_stops_nothing():
    full = open("/dev/full", "w")  # noqa: SIM115
    log = HostLog("algo-1", full)
    log.say("one")
    log.say("two")
    with pytest.raises(OSError, match="No space left"):
        full.close()
