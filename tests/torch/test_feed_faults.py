"""Faults where batches are made (death, hang, delay, exception): batches still come, or an error names the fault."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace.errors import DeadlineError
from headrace.torch.fetch.map_fetcher import SampleError

from tests.ports import free_port
from tests.torch.draws import BOTH, Draws, Lines, batches, indices, plain


def test_a_process_that_is_killed_is_replaced_and_its_batches_are_made_again(feeds):
    expected = batches(feeds.loader([], Draws(), 2, shuffle=True))
    found = []
    for number, batch in enumerate(feeds.with_server(True, Draws(slow=range(53)), 2, shuffle=True, processes=2)):
        found.append(plain(batch))
        if number == 2:
            for process, _ in feeds.servers[0]._pool._workers.values():
                process.kill()
    assert found == expected


def test_a_server_that_is_suspended_is_passed_over(feeds):
    addresses = [feeds.serve(1, Draws(), 2), feeds.serve(1, Draws(), 2)]
    suspended, _ = feeds.servers[0]._pool._workers[0]
    loader = iter(feeds.loader(addresses, Draws(), 2))
    found = next(loader)["index"].tolist()
    os.kill(suspended.pid, signal.SIGSTOP)
    try:
        for batch in loader:
            found += batch["index"].tolist()
    finally:
        os.kill(suspended.pid, signal.SIGCONT)
    assert found == list(range(53))


def test_a_server_that_comes_late_is_used_and_one_that_never_comes_is_named(feeds):
    port = free_port()
    address = f"127.0.0.1:{port}"
    with pytest.raises(DeadlineError, match=rf"no feed server has answered within 0.9 s \({address}: .*refused"):
        next(iter(feeds.loader([address], Draws(), 8, stall_timeout_s=1)))
    loader = feeds.loader([address], Draws(), 8)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(indices, loader)
        time.sleep(0.5)
        feeds.serve(1, Draws(), 8, port=port)
        assert found.result(timeout=120) == list(range(53))


@pytest.mark.parametrize("where", ["servers", "this process", "worker processes"])
def test_a_dataset_that_raises_is_told_with_sample_place_and_traceback(feeds, where):
    dataset = Draws(broken=[20])
    addresses = [feeds.serve(1, dataset, 4)] if where == "servers" else []
    workers = {"num_workers": 1} if where == "worker processes" else {}
    loader = iter(feeds.loader(addresses, dataset, 4, **workers))
    assert len([next(loader) for _ in range(5)]) == 5
    with pytest.raises(SampleError) as raised:
        next(loader)
    first, *trace = str(raised.value).splitlines()
    assert first.startswith("sample 20 raised ValueError: no sample at 20")
    assert (addresses[0] in first) if addresses else True
    assert '    raise ValueError(f"no sample at {index}")' in trace


@BOTH
def test_samples_that_raise_can_be_skipped_and_are_counted(feeds, remote, capsys):
    loader = feeds.with_server(remote, Draws(broken=[3, 20]), 4, on_error="skip")
    assert indices(loader) == [index for index in range(53) if index not in (3, 20)]
    assert loader.skipped == 2
    assert "event=sample_skipped rank=0 index=20 error=ValueError:_no_sample_at_20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Draws(endless=[9]), r"sample 9 hangs: .* after 3 s .*on 127.0.0.1:\d+"),
        (Draws(deadly=[0]), "5 workers ended while they made batch 0 of this rank"),
        (Lines((20,), endless=[7]), "sample 7 of shard 0 hangs"),
        (Lines((20,), deadly=[7]), r"5 workers ended while they made batch \d of shard 0"),
        (Lines((20,), broken=[7]), "sample 7 of shard 0 raised ValueError: no sample at 7"),
    ],
    ids=["hangs", "kills", "hangs in a stream", "kills in a stream", "raises in a stream"],
)
def test_a_sample_that_raises_hangs_or_kills_its_process_ends_the_job_and_says_where(feeds, data, message):
    with pytest.raises(SampleError, match=message):
        list(feeds.with_server(True, data, 4, timeout=3, num_workers=1, processes=2))
