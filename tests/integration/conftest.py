"""What several integration tests use."""

import pytest


@pytest.fixture
def use(monkeypatch):
    """Makes this process a rank whose data come from the service at an address."""

    def point_at(address):
        monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "service")
        monkeypatch.setenv("HEADRACE_DISPATCHER", address)

    return point_at


@pytest.fixture
def stream(tmp_path, use):
    """A service with one worker, and an iterator over its endless batches, of which one has been read."""
    import tensorflow as tf

    from tests.integration.service import read, service

    with service(tmp_path / "work", 1) as running:
        use(running.address)
        batches = iter(read(tf.data.Dataset.range(10).repeat()))
        next(batches)
        yield running, batches


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """An AWS account of the test's own."""
    from tests.integration.account import account  # only here: moto takes a second to import

    with account(tmp_path, monkeypatch) as fake:
        yield fake
