"""Whatever the network or a file contains, headrace handles it or refuses it clearly. It never fails in another way."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from headrace.cluster.sagemaker import topology_from
from headrace.errors import InputError
from headrace.host.control.auth import ClientAuth, Refused, ServerAuth
from headrace.host.host_plan import HostPlan
from headrace.host.inbox import Inbox
from headrace.host.services.contract import DataService
from headrace.host.state import HostState
from headrace.host.usage.host_usage import ResourceUsage
from headrace.job.settings import Settings
from hypothesis import example, given
from hypothesis import strategies as st

SECRET = "s"
LOCAL = DataService(
    HostPlan(topology_from({"hosts": ["algo-1"], "current_host": "algo-1"}, "test"), Settings(), Path(), [], {})
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
surrogates = st.text(st.characters(categories=["Cs", "Ll", "Nd"]), max_size=40)
fields = ("v", "nonce", "proof", "client_nonce", "server_nonce", "counter", "body", "mac")
records = st.dictionaries(st.sampled_from(fields), values | surrogates).map(lambda record: {"v": 1, **record})


def message(record):
    return json.dumps(record).encode()  # JSON accepts half a surrogate pair as text


@given(st.binary(max_size=200) | records.map(message) | values.map(message))
def test_an_unauthenticated_message_is_answered_or_refused(said):
    server, client = ServerAuth(SECRET, "algo-1"), ClientAuth(SECRET, "algo-1")
    with contextlib.suppress(Refused):
        server.hello(said)
    with pytest.raises(Refused):
        server.open("renew", said)
    with pytest.raises(Refused):
        client.greeted(said)


@given(st.sampled_from(fields), values | surrogates)
def test_a_call_with_one_field_replaced_is_refused_or_as_it_was(field, value):
    server, client = ServerAuth(SECRET, "algo-1"), ClientAuth(SECRET, "algo-1")
    client.greeted(server.hello(client.hello()))
    sealed, _seal = client.seal("renew", {"phase": "stepping"})
    changed = json.loads(sealed) | {field: value}
    with contextlib.suppress(Refused):
        body, _ = server.open("renew", message(changed))
        assert body == {"phase": "stepping"}


@example({"outcome": {"root_cause": 1}})
@example({"outcome": {"root_cause": {"log_tail": 1}}})
@given(st.dictionaries(st.sampled_from(["phase", "outcome", "dump", "decision"]), values))
def test_whatever_an_authentic_renewal_says_has_an_answer_and_is_survived(body):
    inbox = Inbox()
    state = HostState("algo-1", ResourceUsage(lambda: []), LOCAL, inbox, lambda: [])
    json.dump(state.renew(body), io.StringIO())
    for stamped in inbox.take(0):
        state.take(stamped)
    json.dump(state.renew({}), io.StringIO())


@given(
    st.dictionaries(
        st.sampled_from(["current_host", "hosts", "network_interface_name", "instance_groups"]),
        values | st.just(["algo-1"]) | st.just("algo-1"),
    )
    | values
)
def test_a_topology_file_of_any_content_is_read_or_refused(config):
    with contextlib.suppress(InputError):
        topology_from(config, "test")


groups = st.dictionaries(
    st.sampled_from(["instance_group_name", "instance_type", "hosts"]),
    values | st.sampled_from(["data_group", "dnn_group", "ml.c5.xlarge", ["algo-1"], ["algo-2"]]),
)


@given(st.lists(groups, max_size=3))
def test_groups_of_any_content_are_read_or_refused(instance_groups):
    hosts = ["algo-1", "algo-2"]
    with contextlib.suppress(InputError):
        topology_from({"current_host": "algo-1", "hosts": hosts, "instance_groups": instance_groups}, "test")
