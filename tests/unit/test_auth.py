"""The control channel accepts each authentic message once, and refuses all others."""

import json

import pytest
from headrace.host.control.auth import ClientAuth, Refused, ServerAuth

SECRET = "s" * 64


def session(server, secret=SECRET, host="algo-1"):
    client = ClientAuth(secret, host)
    client.greeted(server.hello(client.hello()))
    return client


@pytest.fixture
def server():
    return ServerAuth(SECRET, "algo-1")


def test_a_call_and_its_reply_arrive(server):
    call, seal = session(server).seal("renew", {"phase": "starting"})
    body, reply = server.open("renew", call)
    assert body == {"phase": "starting"}
    assert seal.open(reply.seal({"ok": True})) == {"ok": True}


def test_a_call_is_taken_once(server):
    client = session(server)
    call, _ = client.seal("renew", {})
    later, _ = client.seal("renew", {})
    server.open("renew", call)
    with pytest.raises(Refused, match="replayed"):
        server.open("renew", call)
    server.open("renew", later)


def test_an_older_call_is_not_taken_after_a_newer_one(server):
    client = session(server)
    older, _ = client.seal("renew", {})
    newer, _ = client.seal("renew", {})
    server.open("renew", newer)
    with pytest.raises(Refused, match="replayed"):
        server.open("renew", older)


def test_a_call_recorded_before_a_restart_is_worthless_after_it(server):
    call, _ = session(server).seal("renew", {})
    with pytest.raises(Refused, match="unknown session"):
        ServerAuth(SECRET, "algo-1").open("renew", call)


def test_a_call_for_one_method_is_none_for_another(server):
    call, _ = session(server).seal("renew", {})
    with pytest.raises(Refused, match="wrong secret"):
        server.open("launch", call)


def test_a_changed_body_is_refused(server):
    call, _ = session(server).seal("renew", {"outcome": None})
    forged = json.dumps(json.loads(call) | {"body": '{"outcome": {"status": "succeeded"}}'}).encode()
    with pytest.raises(Refused):
        server.open("renew", forged)


def test_a_client_with_another_secret_notices_and_is_noticed(server):
    with pytest.raises(Refused, match="does not hold this job's secret"):
        session(server, secret="other")
    client = ClientAuth("other", "algo-1")
    client._server_nonce = json.loads(server.hello(client.hello()))["nonce"]
    call, _ = client.seal("renew", {})
    with pytest.raises(Refused, match="wrong secret"):
        server.open("renew", call)


def test_a_server_cannot_pass_for_another_host(server):
    with pytest.raises(Refused):
        session(server, host="algo-2")


def test_a_reply_from_elsewhere_is_refused(server):
    client = session(server)
    first, _ = client.seal("renew", {})
    _, seal = client.seal("renew", {})
    _, reply = server.open("renew", first)
    with pytest.raises(Refused, match="not authentic"):
        seal.open(reply.seal({}))


@pytest.mark.parametrize(
    "message",
    [b"", b"garbage", b"[]", b"{}", b'{"v": 2}', b'{"v": 1}', b"\xff\xfe", b"[" * 5000, b'{"v":1,"nonce":7}'],
)
def test_garbage_is_refused_and_nothing_else(server, message):
    with pytest.raises(Refused):
        server.hello(message)
    with pytest.raises(Refused):
        server.open("renew", message)


def test_hellos_leave_no_trace_in_the_server(server):
    before = dict(vars(server))
    for _ in range(1000):
        server.hello(ClientAuth(SECRET, "algo-1").hello())
    assert vars(server) == before
    assert server._counters == {}
