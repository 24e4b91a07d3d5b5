"""The ledger knows exactly which elements were consumed, in whatever order batches come."""

import json

import numpy as np
import pytest
from headrace.errors import InputError
from headrace.training.ledger import LAG_POSITIONS, PLACE_BITS, Ledger

COUNTS = [3, 5, 2, 4]
BROKEN = {"mark": 0, "skipped": 0, "done": [], "begun": {}}


def order(epoch):
    return np.random.default_rng(epoch).permutation(len(COUNTS))


def tags_of(positions):
    tags = []
    for position in positions:
        epoch, place = divmod(position, len(COUNTS))
        tags += [(position << PLACE_BITS) + n for n in range(COUNTS[order(epoch)[place]])]
    return np.asarray(tags, np.int64)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_done_and_what_is_not_are_all_elements(seed):
    rng = np.random.default_rng(seed)
    everything = rng.permutation(tags_of(range(12)))
    consumed = everything[: rng.integers(len(everything))]
    ledger = Ledger(COUNTS, order)
    for batch in np.array_split(consumed, 7):
        ledger.add(batch)
    again = Ledger(COUNTS, order)
    again.restore(json.loads(json.dumps(ledger.state())))
    left_out = {*again.done_tags(), *tags_of(again.done_positions())}
    to_come = {tag for tag in tags_of(range(again.mark, 12)) if tag not in left_out}
    assert to_come == {*everything} - {*consumed}
    assert again.begun_elements == len(left_out)


def test_the_mark_passes_whole_positions_only_and_elements_count_once():
    ledger = Ledger(COUNTS, order)
    first = tags_of([0])
    ledger.add(first[:-1])
    assert ledger.mark == 0
    ledger.add(first)
    ledger.add(first)
    assert (ledger.mark, ledger.begun_elements) == (1, 0)


def test_what_never_comes_is_given_up_at_last_and_counted():
    ledger = Ledger(COUNTS, order)
    lost = tags_of([0, 1])[1:]  # the ledger gets only one of the elements at the first two positions
    for position in range(LAG_POSITIONS + 5):
        ledger.add(np.setdiff1d(tags_of([position]), lost))
    assert ledger.mark == LAG_POSITIONS + 5
    assert ledger.skipped == len(lost)
    assert len(json.dumps(ledger.state())) < 100


@pytest.mark.parametrize(
    "state",
    [{}, {"mark": "x"}, BROKEN | {"begun": {"0": [[0, 99]]}}, BROKEN | {"done": 3}],
)
def test_a_broken_ledger_is_refused_with_the_mend(state):
    with pytest.raises(InputError, match="delete that checkpoint"):
        Ledger(COUNTS, order).restore(state)
