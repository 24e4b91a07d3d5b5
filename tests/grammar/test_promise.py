"""Workers and ranks yield what plain tf.data yields, or headrace refuses the pipeline and names a fix.

HEADRACE_PIPELINES is the number of pipelines (24 in `make test`, 500 in `make grammar`); HEADRACE_SEED selects them.
The test of workers reads several pipelines at once, since a pipeline mostly waits for tf.data service's heartbeats.
"""

import collections
import os
import random
import threading

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.ranks import collectives
from hypothesis import HealthCheck, Phase, assume, given, note, seed, settings
from hypothesis import strategies as st

from tests.grammar.pipelines import SOURCES, TRANSFORMATIONS, pipeline_of, rows
from tests.integration.service import consumers, service

PIPELINES = int(os.environ.get("HEADRACE_PIPELINES", "24"))
WORKERS = (1, 2, 4)
AT_ONCE = 5
NUMBERS = st.integers(0, 2**64 - 1)
"""Seeds from which pipelines are drawn. Hypothesis itself would draw few kinds, and would draw many pipelines twice."""
CONSUME_S = 60
OFTEN = 8
"""For each transformation in `EVERYDAY`: if at least this many pipelines contain it, at least one of these pipelines
must be accepted. If fewer contain it, all of them may be refused because of other transformations."""
EVERYDAY = ("zip with a range", "take", "skip", "enumerate", "shuffle", "repeat", "batch", "padded_batch", "interleave",
            "map", "filter", "cache", "concatenate", "list_files and interleave")  # fmt: skip
how = {
    "phases": [Phase.explicit, Phase.generate], "deadline": None, "database": None, "print_blob": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}  # fmt: skip
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
    """Counters of accepted and of tried pipelines for each transformation; printed at the end."""
    accepted, tried = collections.Counter(), collections.Counter()
    yield accepted, tried
    lines = [f"{accepted[name]:4} of {tried[name]:4}  {name}" for name in (*SOURCES, *TRANSFORMATIONS) if tried[name]]
    print("\naccepted, of the pipelines that were tried\n" + "\n".join(lines), flush=True)


class Readers:
    """Consumers of one pipeline, each in a thread of its own."""

    def __init__(self, streams):
        self._got, self._errors = [[] for _ in streams], []
        self._threads = [
            threading.Thread(target=self._consume, args=(place, stream), daemon=True)
            for place, stream in enumerate(streams)
        ]
        for thread in self._threads:
            thread.start()

    def _consume(self, place, stream):
        try:
            self._got[place] += rows(stream)
        except Exception as error:
            self._errors.append(error)

    def rows(self):
        """Return the rows of all consumers, once all have ended."""
        for thread in self._threads:
            thread.join(CONSUME_S)
            assert not thread.is_alive(), "a consumer hangs"
        if self._errors:
            raise self._errors[0]
        return [row for part in self._got for row in part]


def compare(pipeline, files, got, drops):
    """Assert that `got` is what plain tf.data yields. If `drops`, last batches of workers or ranks may be missing."""
    in_order = tf.data.Options()
    in_order.deterministic = True  # otherwise "in any order" steps yield an order that depends on load
    pipeline = pipeline.keeping_the_rest if drops else pipeline
    expected = rows(pipeline.build(files).with_options(in_order))
    if drops:
        assert not collections.Counter(got) - collections.Counter(expected)
    elif pipeline.draws_what_is_dropped:
        assert len(got) == len(expected)  # the elements differ each time, in plain tf.data too
    else:
        assert collections.Counter(got) == collections.Counter(expected)


@pytest.fixture
def done():
    """The set of seeds that were tried already. The hypothesis library often draws the same seed again."""
    return set()


def fresh(done, number):
    assume(number not in done)
    return random.Random(number)


def drops_are_told(capfd):
    """Return whether a warning since the last call says that each worker or rank drops its last batch."""
    return "drop_remainder leaves out" in capfd.readouterr().out


def drawn(chance, files):
    """Draw a pipeline that plain tf.data can run, and whose length tf.data knows correctly.

    Two kinds of pipelines are left out. tf.data fails when it concatenates batches of `choose_from_datasets`. tf.data
    gives a length, but no element, if an empty dataset is repeated without end and then cut off by `take`.
    """
    while True:
        pipeline = pipeline_of(chance)
        dataset = pipeline.build(files)
        try:
            iter(pipeline.keeping_the_rest.build(files))  # what `compare` may run
            if int(dataset.cardinality()) > 0 and not rows(dataset.take(1)):
                continue
        except tf.errors.InvalidArgumentError as error:
            assert "Incompatible shapes" in error.message
        else:
            return pipeline


def count(shares, pipeline, accepted):
    for name in set(pipeline.names):
        shares[1][name] += 1
        shares[0][name] += accepted


def test_workers_give_what_plain_tf_data_gives_and_take_what_people_use_in_some_form(
    services, files, shares, monkeypatch, capfd, done
):
    @seeded
    @settings(max_examples=-(-PIPELINES // AT_ONCE), **how)
    @given(number=NUMBERS)
    def given_by_workers(number):
        chance = fresh(done, number)
        workers = chance.choice(WORKERS)
        monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "service")
        monkeypatch.setenv("HEADRACE_DISPATCHER", services[workers].address)
        readers = []
        for _ in range(AT_ONCE):
            pipeline, ranks = drawn(chance, files), chance.randint(1, 4)
            drops_are_told(capfd)
            try:
                streams = consumers(ranks, pipeline.build(files), job_name=os.urandom(8).hex())
            except InputError as error:
                assert "Write " in str(error), f"no fix in: {error}"
                count(shares, pipeline, 0)
            else:
                readers.append((pipeline, ranks, drops_are_told(capfd), Readers(streams)))
        for pipeline, ranks, drops, each in readers:
            note(f"{workers} workers, {ranks} consumers: {pipeline}")
            compare(pipeline, files, each.rows(), drops)
            count(shares, pipeline, 1)
        done.add(number)

    given_by_workers()
    accepted, tried = shares
    assert [name for name in EVERYDAY if tried[name] >= OFTEN and not accepted[name]] == []


@seeded
@settings(max_examples=PIPELINES, **how)
@given(number=NUMBERS)
def test_ranks_that_read_themselves_get_together_what_plain_tf_data_gives(files, monkeypatch, capfd, done, number):
    chance = fresh(done, number)
    pipeline, ranks = drawn(chance, files), chance.randint(2, 4)
    note(f"{ranks} ranks: {pipeline}")
    got = []
    drops_are_told(capfd)
    monkeypatch.setattr(collectives, "size", lambda: ranks)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    for rank in range(ranks):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        try:
            got += rows(data.split_by_rank(pipeline.build(files)))
        except InputError as error:
            assert "Write " in str(error), f"no fix in: {error}"
            break
    else:
        compare(pipeline, files, got, drops_are_told(capfd))
    done.add(number)
