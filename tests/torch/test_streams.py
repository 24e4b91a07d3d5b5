"""An IterableDataset is shared by ranks and made by data hosts as torch's workers share it: exactly, or not at all."""

import dataclasses
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from headrace.errors import DeadlineError, InputError
from headrace.torch.fingerprint import fingerprint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from tests.torch.lines import Lines, all_lines, indices, plain


def test_servers_make_the_batches_of_local_mode_epoch_after_epoch(feeds):
    two = [feeds.serve(2, Lines(), 4) for _ in range(2)]
    expected = None
    for addresses in ([], two[:1], two):
        loader = feeds.loader(addresses, Lines(), 4, shards=3, seed=5, num_workers=1)
        found = [[plain(batch) for batch in loader] for _ in range(2)]
        expected = expected or found
        assert found == expected
    assert [indices(epoch) for epoch in expected] == [all_lines(Lines().lengths)] * 2
    assert expected[0] != expected[1] and {each for batch in expected[1] for each in batch[3]} == {1}


def test_batches_come_in_the_order_of_torchs_own_loader(feeds, monkeypatch):
    monkeypatch.setattr(random, "shuffle", lambda files: None)
    for workers in (0, 1, 3):
        own = torch.utils.data.DataLoader(Lines(), 4, num_workers=workers, collate_fn=_numbers)
        assert list(feeds.loader([], Lines(), 4, num_workers=workers, collate_fn=_numbers)) == list(own)


def _numbers(samples):
    return [each["index"] for each in samples]


class Uneven(Lines):
    """Part p has the lines of file p."""

    def __iter__(self):
        number = get_worker_info().id
        for line in range(self.lengths[number]):
            yield {"index": number * 100 + line, "draws": torch.rand(2), "numpy": random.random(), "epoch": self.epoch}


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_servers_and_ranks_give_each_sample_once_and_resume_at_any_step_on_any_number_of_ranks(feeds, ranks, data):
    lengths = tuple(data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=5)))
    world, later = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    addresses = [feeds.serve(1, Uneven(lengths), 2) for _ in range(data.draw(st.integers(0, 2)))]
    options = {"shards": len(lengths), "seed": 3, "num_workers": 1}
    whole, _ = ranks(addresses, world, Uneven(lengths), 2, **options)
    assert len({len(rank) for rank in whole}) == 1, "all ranks make the same number of steps"
    assert indices(unpadded(whole)) == all_lines(lengths)
    stop = data.draw(st.integers(1, len(whole[0])))
    first, states = ranks(addresses, world, Uneven(lengths), 2, most=stop, **options)
    assert first == [rank[:stop] for rank in whole]
    assert all(state["taken"] == states[0]["taken"] for state in states)
    left = [-(-length // 2) - taken for length, taken in zip(lengths, states[0]["taken"], strict=True)]
    rest, _ = ranks(addresses, later, Uneven(lengths), 2, state=states[0], **options)
    assert len({len(rank) for rank in rest}) == 1
    assert set(map(repr, unpadded(first) + unpadded(rest))) == set(map(repr, unpadded(whole)))
    if all(sum(left[rank::later]) for rank in range(later)):  # else a rank takes one that was trained on before
        assert sorted(map(repr, unpadded(first) + unpadded(rest))) == sorted(map(repr, unpadded(whole)))


def unpadded(of_ranks):
    """All batches, those that a rank took again left out."""
    return [
        batch for rank in of_ranks for place, batch in enumerate(rank) if batch != (rank[place - 1] if place else None)
    ]


def test_without_drop_last_a_rank_that_has_ended_takes_its_last_batch_again_and_with_it_all_stop(ranks):
    padded, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=False)
    assert [len(rank) for rank in padded] == [3, 3] and indices(unpadded(padded)) == all_lines((6, 2))
    dropped, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=True)
    assert [len(rank) for rank in dropped] == [1, 1]


def test_a_rank_without_a_batch_is_told_so(ranks):
    with pytest.raises((InputError, DeadlineError), match=r"got no batch: .*write as many|1 of 2 ranks"):
        ranks([], 2, Lines((6,)), 2, shards=2, seed=1, stall_timeout_s=4)


def test_an_epoch_without_a_step_is_no_epoch(ranks):
    with pytest.raises(InputError, match="an epoch has no step: 1 of 2 ranks have a batch"):
        ranks([], 2, Lines((6,)), 2, shards=2, seed=1, drop_last=True)


@pytest.mark.parametrize(
    "options, message",
    [({"shards": 1}, "1 parts cannot be shared by 2 ranks"), ({"shards": -1}, "expected 1 to"),
     ({"on_error": "skip"}, "needs a map-style dataset")],
)  # fmt: skip
def test_wrong_arguments_are_refused(feeds, options, message):
    with pytest.raises(InputError, match=message):
        feeds.loader([], Lines(), 2, world=2, **options)
    with pytest.raises(InputError, match="shards is for an IterableDataset"):
        feeds.loader([], [1, 2, 3], 2, shards=2)


@pytest.mark.parametrize("module", ["streaming.base.dataset", "litdata.streaming.dataset"])
def test_a_librarys_dataset_whose_workers_wait_for_all_others_is_refused(feeds, module):
    library = type("StreamingDataset", (Lines,), {"__module__": module})
    users = type("Mine", (library,), {})
    with pytest.raises(InputError, match=rf"{module}.StreamingDataset shares its samples among all ranks by itself"):
        feeds.loader([], users(), 2)


def test_a_state_of_another_kind_of_dataset_is_refused(feeds):
    with pytest.raises(InputError, match="no state of a DataLoader of an IterableDataset"):
        feeds.loader([], Lines(), 2).load_state_dict({"seed": 1, "epoch": 0, "position": 4})


def test_within_an_epoch_batches_keep_their_size(feeds):
    state = {"seed": 1, "epoch": 0, "position": 50, "shards": 1, "batch_size": 5, "taken": [10]}
    with pytest.raises(InputError, match="goes on with batches of the same size, 5, and not 4"):
        feeds.loader([], Lines(), 4).load_state_dict(state)
    feeds.loader([], Lines(), 4).load_state_dict(state | {"position": 0, "epoch": 1})


def test_a_rank_says_how_many_samples_a_batch_has(feeds):
    # To a feed server `batch_size // world_size()` is another number.
    address = feeds.serve(1, Lines(), 8, seed=1, shards=2, drop_last=True)
    remote = [plain(batch) for batch in feeds.loader([address], Lines(), 4, seed=1, shards=2)]
    assert remote == [plain(batch) for batch in feeds.loader([], Lines(), 4, seed=1, shards=2)]
    assert len(remote) >= sum(Lines().lengths) // 4


LEFT_OPEN = """
import atexit, itertools, threading
def reading():
    return [each.name for each in threading.enumerate() if each.name == "stream"]
atexit.register(lambda: print("at the end:", reading()))
from headrace.torch.sampling import stream_shards as streaming
batches = streaming._read_ahead(itertools.count(), threading.Event())
next(batches)
print("open:", reading())
"""


def test_a_thread_that_reads_ahead_has_ended_before_python_does():
    """It agrees with other ranks in torch, and would abort the process."""
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "open: ['stream']\nat the end: []\n"), ended.stderr


def test_a_loader_made_anew_for_each_epoch_agrees_anew(ranks):
    one, _ = ranks([], 2, Uneven((4, 4)), 2, shards=2, drop_last=True, anew=(8, 6))
    assert [len(rank) for rank in one] == [2 + 3, 2 + 3]


def test_generators_and_shares_that_a_library_has_noted_must_be_alike_in_a_stream():
    @dataclasses.dataclass
    class Share:
        rank: int
        draws: np.random.Generator

    def made(rank, seed):
        data = Lines()
        data.share = Share(rank, np.random.default_rng(seed))
        return fingerprint(data)

    assert made(0, 1) == made(0, 1)
    assert made(0, 1) != made(1, 1) and made(0, 1) != made(0, 2)
