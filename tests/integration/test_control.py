"""Over real sockets, the control channel survives lost connections, and refuses unauthenticated clients."""

import contextlib
import io
import socket
import threading
import time

import grpc
import pytest
from headrace.cluster.topology import Host
from headrace.errors import SetupError
from headrace.host.control.channel import SERVICE, ControlClient, ControlError, ControlServer
from headrace.host.inbox import HostAnswered, HostInformed, Inbox
from headrace.host.leader.lease import Lease
from headrace.host.leader.peers import Hosts
from headrace.host.log import HostLog
from headrace.host.mpi import remote_launch
from headrace.outcome import Outcome, RootCause

from tests.support import WAIT_S, wait_for

SECRET = "s" * 64


@pytest.fixture
def served():
    calls, out = [], io.StringIO()

    def renew(body):
        calls.append(body)
        return {"ready": [], "echo": body}

    with ControlServer("127.0.0.1:0", "algo-1", SECRET, {"renew": renew}, HostLog("algo-1", out)) as server:
        yield server, calls, out


def client(server, secret=SECRET, host="algo-1"):
    return ControlClient(f"127.0.0.1:{server.port}", host, secret)


def test_calls_arrive(served):
    server, _, _ = served
    with client(server) as leader:
        assert leader.call("renew", {"n": 1}, timeout_s=60)["echo"] == {"n": 1}
        assert leader.call("renew", {"n": 2}, timeout_s=60)["echo"] == {"n": 2}


def test_a_caller_with_another_secret_changes_nothing_and_is_told(served):
    server, calls, _ = served
    with client(server, secret="other") as other, pytest.raises(ControlError, match="secret"):
        other.call("renew", {}, timeout_s=60)
    assert calls == []


def test_a_silent_host_costs_one_deadline(served):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            ControlClient(address, "algo-1", SECRET) as leader,
            pytest.raises(ControlError, match=r"deadline|unavailable"),
        ):
            leader.call("renew", {}, timeout_s=0.5)


class Line:
    """A proxy to a server. After a call of `cut`, only connections that are made later carry data."""

    def __init__(self, port):
        self._port, self._cuts = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self._cuts += 1

    def _accept(self):
        while True:
            ends = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._port))
            for here, there in (ends, ends[::-1]):
                threading.Thread(target=self._carry, args=(here, there, self._cuts), daemon=True).start()

    def _carry(self, here, there, cuts):
        with contextlib.suppress(OSError):  # the other end is gone
            while data := here.recv(65536):
                if self._cuts == cuts:
                    there.sendall(data)


def test_after_a_call_that_a_cut_has_lost_the_next_one_takes_a_new_connection(served):
    server, calls, out = served
    line = Line(server.port)
    with ControlClient(line.address, "algo-1", SECRET) as leader:
        leader.call("renew", {"n": 1}, timeout_s=60)
        line.cut()
        with pytest.raises(ControlError, match="deadline"):
            leader.call("renew", {"n": 2}, timeout_s=0.5)
        assert leader.call("renew", {"n": 3}, timeout_s=60)["echo"] == {"n": 3}
    assert [call["n"] for call in calls] == [1, 3]
    assert "refused" not in out.getvalue()


def test_unauthenticated_calls_garbage_and_silence_do_not_delay_the_leader(served):
    server, calls, out = served
    half_open = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for number, connection in enumerate(half_open):
        if number % 2:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for method in ("hello", "renew", "nothing"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/{SERVICE}/{method}")(b"garbage", timeout=60)
    with client(server) as leader:
        leader.call("renew", {"n": 1}, timeout_s=60)
    for connection in half_open:
        connection.close()
    assert calls == [{"n": 1}]
    assert "refused" in out.getvalue()


def test_calls_that_are_begun_and_never_completed_hold_up_nobody(served):
    server, calls, _ = served
    held = threading.Event()
    channels = [grpc.insecure_channel(f"127.0.0.1:{server.port}") for _ in range(4)]

    def silence():
        held.wait(WAIT_S)
        yield b""

    pending = [
        channel.stream_unary(f"/{SERVICE}/{method}").future(silence(), timeout=WAIT_S)
        for channel in channels
        for method in ("hello", "renew")
        for _ in range(25)
    ]
    with client(server) as leader:
        for number in range(5):
            leader.call("renew", {"n": number}, timeout_s=60)
    assert len(calls) == 5
    held.set()
    for call in pending:
        call.cancel()
    for channel in channels:
        channel.close()


def test_refusals_are_logged_at_a_limited_rate(served, monkeypatch):
    monkeypatch.setattr("headrace.host.control.channel.REFUSAL_LOG_INTERVAL_S", 600.0)
    server, _, out = served
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for _ in range(50):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/{SERVICE}/renew")(b"garbage", timeout=60)
    assert out.getvalue().count("refused") == 1


def test_a_taken_port_is_an_error(served):
    server, _, _ = served
    with pytest.raises(SetupError, match=str(server.port)):
        ControlServer(f"127.0.0.1:{server.port}", "algo-1", SECRET, {}, HostLog("algo-1", io.StringIO()))


def test_a_lease_is_renewed_and_delivers_the_outcome(served):
    server, calls, _ = served
    inbox = Inbox()
    lease = Lease("algo-1", f"127.0.0.1:{server.port}", SECRET, 10, lambda: {"phase": "stepping"}, inbox)
    first, *_ = wait_for(lambda: [each for _, each in inbox.take(1) if isinstance(each, HostAnswered)], "an answer")
    assert first == HostAnswered("algo-1", {"ready": [], "echo": calls[0]})
    lease.deliver(Outcome(RootCause("algo-2", "rank1", "was killed by SIGKILL", signal="SIGKILL")))
    wait_for(lambda: HostInformed("algo-1") in [happening for _, happening in inbox.take(1)], "the delivery")
    assert Outcome.from_json(calls[-1]["outcome"]).root_cause.signal == "SIGKILL"
    assert calls[0]["phase"] == "stepping"


def test_a_host_that_goes_away_is_lost_after_the_lease(served):
    server, _, _ = served
    inbox, hosts = Inbox(), Hosts((Host("algo-1", "data_group", "ml.c5.xlarge", "data"),), lease_s=1.5)

    def known():
        for stamped in inbox.take(0.1):
            hosts.take(stamped)
        return hosts

    lease = Lease("algo-1", f"127.0.0.1:{server.port}", SECRET, 1.5, lambda: {"phase": ""}, inbox)
    wait_for(lambda: known().statuses, "the first renewal")
    server.__exit__()
    wait_for(lambda: known().overdue(time.monotonic()) and hosts.errors["algo-1"], "the lease's end, with an error")
    lease.close()


def test_mpiruns_agent_asks_the_host_that_has_the_address(monkeypatch, capsys):
    asked = []
    handlers = {"start_mpi_daemon": lambda body: asked.append(body) or {}}
    with ControlServer("127.0.0.1:0", "algo-2", SECRET, handlers, HostLog("algo-2", io.StringIO())) as server:
        monkeypatch.setenv("HEADRACE_CONTROL_HOSTS", f"algo-1=127.0.0.2:1,algo-2=127.0.0.1:{server.port}")
        monkeypatch.setenv("HEADRACE_JOB_SECRET", SECRET)
        monkeypatch.setattr("sys.argv", ["agent", "127.0.0.1", "PATH=/bin ; orted -mca ess env"])
        assert remote_launch.main() == 0
        assert asked == [{"arguments": ["-mca", "ess", "env"]}]
        monkeypatch.setattr("sys.argv", ["agent", "127.0.0.9", "orted"])
        assert remote_launch.main() == 1
    assert "Cannot start the MPI daemon on 127.0.0.9" in capsys.readouterr().err
