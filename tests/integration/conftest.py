"""What several integration tests use."""

import pytest


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """An AWS account of the test's own."""
    from tests.integration.account import account  # only here: moto takes a second to import

    with account(tmp_path, monkeypatch) as fake:
        yield fake
