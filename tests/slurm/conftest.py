"""Fixtures: a Slurm cluster for all tests of this folder, and a function that submits jobs to it."""

import pytest

from tests.slurm import cluster as simulated
from tests.slurm.jobs import Job


def pytest_collection_modifyitems(items):
    if why := simulated.missing():
        for item in items:
            if item.path.parent.name == "slurm":
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with simulated.running_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    """Function that submits the toy job with further flags. After the test, a job that still runs is cancelled."""
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    jobs = []

    def begin(*flags):
        jobs.append(Job(cluster, tmp_path, f"toys-{len(jobs)}", *flags))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.cancel()
    simulated.wait_until(lambda: not cluster.jobs(), "empty queue")
