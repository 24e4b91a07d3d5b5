"""Requests for batches: any index arrives unchanged, and the dataset is asked for exactly the requested indices."""

import contextlib
import json

from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import BatchRequest, MapFetcher
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from tests.torch.draws import Numbers

PLAIN = st.integers() | st.text() | st.booleans()
PAIRS = st.tuples(PLAIN, PLAIN | st.floats(allow_nan=False)) | st.lists(PLAIN, max_size=3)
INDICES = st.lists(PLAIN | PAIRS | st.tuples(PLAIN, PAIRS), min_size=1, max_size=4)
ANYTHING = st.recursive(
    st.none() | st.floats() | PLAIN, lambda of: st.lists(of) | st.dictionaries(st.text() | st.just("tuple"), of)
)


@given(INDICES)
def test_a_request_asks_for_the_same_on_the_other_side(indices):
    request = BatchRequest(1, 2, list(range(len(indices))), indices)
    there = BatchRequest.from_json(json.loads(json.dumps(request.as_json())))
    assert (there, repr(there.indices)) == (request, repr(indices))


@given(ANYTHING, ANYTHING)
def test_what_is_no_request_is_an_error_of_ours(indices, record):
    for each in record, {"seed": 0, "epoch": 0, "positions": [0], "indices": indices}:
        with contextlib.suppress(InputError):
            BatchRequest.from_json(json.loads(json.dumps(each)))


class InOneRead(Numbers):
    def __getitems__(self, indices):
        self.reads.append(indices)
        return [index * 10 for index in indices]


def test_a_dataset_that_reads_several_samples_at_once_is_asked_for_all_of_a_batch():
    for data, reads in ((InOneRead(20, reads=[]), [3, 4]), (Subset(InOneRead(20, reads=[]), range(5, 20)), [8, 9])):
        fetcher = MapFetcher(data, list, True, "raise")
        assert fetcher.fetch(BatchRequest(0, 0, [0, 1], [3, 4])).batch == [10 * each for each in reads]
        assert getattr(data, "dataset", data).reads == [reads]
