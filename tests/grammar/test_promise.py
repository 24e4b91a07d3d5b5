"""What `data.distribute` accepts gives what plain tf.data gives, whoever shares it; the rest is refused with a fix.

HEADRACE_PIPELINES says how many are tried (500 in `make grammar`), HEADRACE_SEED which.
"""

import collections
import os
import threading

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data, world
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from tests.grammar.pipelines import SOURCES, TRANSFORMATIONS, pipelines, rows
from tests.integration.service import consumers, service

PIPELINES = int(os.environ.get("HEADRACE_PIPELINES", "40"))
WORKERS = (1, 2, 4)
CONSUME_S = 60
EVERYDAY = ("zip with a range", "take", "skip", "enumerate", "shuffle", "repeat", "batch", "padded_batch", "interleave",
            "map", "filter", "cache", "concatenate", "list_files and interleave")  # fmt: skip
tries = settings(
    max_examples=PIPELINES, phases=[Phase.explicit, Phase.generate], deadline=None, database=None, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
seeded = seed(int(os.environ.get("HEADRACE_SEED", "1")))


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    running, opened = {}, []
    for workers in WORKERS:
        opened.append(service(tmp_path_factory.mktemp("service") / "work", workers))
        running[workers] = opened[-1].__enter__()
    yield running
    for each in opened:
        each.__exit__(None, None, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    found = {"folder": folder, "text": [], "records": []}
    for number, count in enumerate((5, 17, 1, 9, 30)):
        found["text"].append(folder / f"{number}.txt")
        found["text"][-1].write_text("".join(f"{number * 100 + line}\n" for line in range(count)))
        found["records"].append(folder / f"{number}.tfrecord")
        with tf.io.TFRecordWriter(str(found["records"][-1])) as writer:
            for record in range(count):
                writer.write(str(number * 100 + record))
    return found


@pytest.fixture(scope="module")
def shares():
    """How many pipelines with each transformation were accepted; printed at the end."""
    accepted, tried = collections.Counter(), collections.Counter()
    yield accepted, tried
    lines = [f"{accepted[name]:4} of {tried[name]:4}  {name}" for name in (*SOURCES, *TRANSFORMATIONS) if tried[name]]
    print("\naccepted, of the pipelines that were tried\n" + "\n".join(lines), flush=True)


def read_all(streams):
    """What consumers in threads of their own get together."""
    got, errors = [[] for _ in streams], []

    def consume(place):
        try:
            got[place] += rows(streams[place])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=consume, args=(place,), daemon=True) for place in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CONSUME_S)
        assert not thread.is_alive(), "a consumer hangs"
    if errors:
        raise errors[0]
    return [row for part in got for row in part]


def compare(pipeline, files, got):
    expected = rows(pipeline.build(files))
    if pipeline.draws_what_is_dropped:
        assert len(got) == len(expected)  # the elements are others each time, in plain tf.data too
    else:
        assert collections.Counter(got) == collections.Counter(expected)


def count(shares, pipeline, accepted):
    for name in set(pipeline.names):
        shares[1][name] += 1
        shares[0][name] += accepted


@seeded
@tries
@given(pipeline=pipelines(), workers=st.sampled_from(WORKERS), ranks=st.integers(1, 4), number=st.integers())
def test_workers_give_what_plain_tf_data_gives(services, files, shares, monkeypatch, pipeline, workers, ranks, number):
    monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "service")
    monkeypatch.setenv("HEADRACE_DISPATCHER", services[workers].address)
    note(f"{workers} workers, {ranks} consumers: {pipeline}")
    try:
        streams = consumers(ranks, pipeline.build(files), job_name=f"{os.urandom(8).hex()}")
    except InputError as error:
        assert "Write " in str(error), f"no fix in: {error}"
        count(shares, pipeline, 0)
        return
    compare(pipeline, files, read_all(streams))
    count(shares, pipeline, 1)


@seeded
@tries
@given(pipeline=pipelines(), ranks=st.integers(2, 4))
def test_ranks_that_read_themselves_get_together_what_plain_tf_data_gives(files, monkeypatch, pipeline, ranks):
    note(f"{ranks} ranks: {pipeline}")
    got = []
    monkeypatch.setattr(world, "size", lambda: ranks)
    monkeypatch.setattr(world, "are_equal", lambda *_: True)
    for rank in range(ranks):
        monkeypatch.setattr(world, "rank", lambda rank=rank: rank)
        try:
            got += rows(data.split_by_rank(pipeline.build(files)))
        except InputError as error:
            assert "Write " in str(error), f"no fix in: {error}"
            return
    compare(pipeline, files, got)
