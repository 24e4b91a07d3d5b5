"""An order of a batch says which samples, whatever a dataset is asked for; from a stranger it is an error at most."""

import contextlib
import json

from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import Order, read_order
from hypothesis import given
from hypothesis import strategies as st

PLAIN = st.integers() | st.text() | st.booleans()
PAIRS = st.tuples(PLAIN, PLAIN | st.floats(allow_nan=False)) | st.lists(PLAIN, max_size=3)
INDICES = st.lists(PLAIN | PAIRS | st.tuples(PLAIN, PAIRS), min_size=1, max_size=4)
ANYTHING = st.recursive(
    st.none() | st.floats() | PLAIN, lambda of: st.lists(of) | st.dictionaries(st.text() | st.just("tuple"), of)
)


@given(INDICES)
def test_an_order_asks_for_the_same_on_the_other_side(indices):
    order = Order(1, 2, list(range(len(indices))), indices, [None, [0.5]])
    there = read_order(json.loads(json.dumps(order.as_json())))
    assert (there, repr(there.indices)) == (order, repr(indices))


@given(ANYTHING, ANYTHING)
def test_what_is_no_order_is_an_error_of_ours(indices, record):
    for each in record, {"seed": 0, "epoch": 0, "positions": [0], "indices": indices}:
        with contextlib.suppress(InputError):
            read_order(json.loads(json.dumps(each)))
