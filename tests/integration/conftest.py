"""Fixtures of several integration tests."""

import contextlib
import uuid

import pytest


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Function that returns a service with the given number of workers. A module's tests share it: do not break it."""
    from tests.integration.service import service

    running = {}

    def of(workers):
        if workers not in running:
            running[workers] = opened.enter_context(service(tmp_path_factory.mktemp("service") / "work", workers))
        return running[workers]

    with contextlib.ExitStack() as opened:
        yield of


@pytest.fixture
def use(monkeypatch):
    """Function that makes this process a rank of a new job. The job reads from the service at the given address."""

    def point_at(address):
        monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "service")
        monkeypatch.setenv("HEADRACE_DISPATCHER", address)
        monkeypatch.setenv("HEADRACE_JOB_NAME", f"test-{uuid.uuid4().hex[:8]}")

    return point_at


@pytest.fixture
def stream(tmp_path, use):
    """A service with one worker, and an iterator over its endless batches. One batch has been read."""
    import tensorflow as tf

    from tests.integration.service import service, transferred

    with service(tmp_path / "work", 1) as running:
        use(running.address)
        yield running, transferred(tf.data.Dataset.range(10).repeat())


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """A simulated AWS account for one test."""
    from tests.integration.account import account  # only here: moto takes a second to import

    with account(tmp_path, monkeypatch) as fake:
        yield fake
