"""PyTorch's feed: how fast a rank gets batches, beside other ways; what more processors bring; an epoch beside torch's.

    python -m bench torch [--repeats 5]        (run by .venv-torch: make setup-torch)

The race: a server on one processor sends the same batch of 32 images again and again to a consumer on another. "tcp"
copies bytes into memory that is there already; the others hand out new tensors. "pickle" is the published sample's way:
one gRPC stream of pickled batches. Then a heavy dataset (bench/torch_heavy.py): feed server and consumer on one
processor and on two, torch's own DataLoader on the same two, and Ray Data where `tools/peers.py` has installed it.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import measure, torch_race
from tests.support import wait_for_port
from tests.torch.ports import free_port

WAYS = ("tcp", "feed", "grpc", "pickle", "flight")
FORMS = ("uint8_224", "float32_224", "uint8_32")
IMAGES = 4800
HEAVY = Path(__file__).parent / "torch_heavy.py"
RAY = Path(__file__).parents[1] / ".venv-peers" / "ray"


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    first, second = measure.two_processors()
    rates, per_core, heavy = {}, {}, {}
    for repeat in range(repeats):
        for form in FORMS:
            for way in WAYS:
                rate, of_core = one_way(way, form, first, second)
                rates.setdefault((form, way), []).append(rate)
                per_core.setdefault((form, way), []).append(of_core)
        for name, found in heavy_rates(first, second):
            heavy.setdefault(name, []).append(found)
        print(f"torch: {repeat + 1} of {repeats}", flush=True)

    def ratio(of, one, other):
        return measure.median([a / b for a, b in zip(of[one], of[other], strict=True)])

    rows = [
        {"form, way": f"{form} {way}", "images/s": measure.median(rates[form, way]),
         "images/s per consumer core": measure.median(per_core[form, way])}
        for form in FORMS for way in WAYS
    ]  # fmt: skip
    rows += [{"form, way": f"heavy, {name}", "images/s": measure.median(found), "images/s per consumer core": ""}
             for name, found in heavy.items()]  # fmt: skip
    figures = {
        "torch_feed_vs_tcp": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "tcp")),
        "torch_feed_vs_grpc": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "grpc")),
        "torch_feed_vs_flight": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "flight")),
        "torch_feed_vs_pickle_queue": ratio(per_core, ("uint8_224", "feed"), ("uint8_224", "pickle")),
        "torch_feed_uint8_vs_pickle_queue_float32": ratio(per_core, ("uint8_224", "feed"), ("float32_224", "pickle")),
        "torch_scaling_efficiency": ratio(heavy, "feed, 2 processors", "feed, 1 processor") / 2,
        "torch_scaling_vs_processors": ratio(heavy, "feed, 2 processors", "feed, 1 processor")
        / ratio(heavy, "going nowhere, 2 processors", "going nowhere, 1 processor"),
        "torch_epoch_vs_local_loader": ratio(heavy, "feed, 2 processors", "DataLoader, 2 workers"),
    }
    if "Ray Data, 2 processors" in heavy:
        figures["torch_epoch_vs_ray_data"] = ratio(heavy, "feed, 2 processors", "Ray Data, 2 processors")
    measure.leave("torch", figures, rows, repeats=repeats)


def one_way(way, form, server_processor, own_processor):
    """Images a second, and images for each second of the consumer's processor time."""
    port = free_port()

    def command(side, processor):
        return [sys.executable, torch_race.__file__, side, way, form, str(port), str(processor)]

    server = subprocess.Popen(command("serve", server_processor), env=environ())
    try:
        wait_for_port(port, server)
        taken = subprocess.run(
            command("take", own_processor), env=environ(), stdout=subprocess.PIPE, check=True, timeout=120
        )
        return json.loads(taken.stdout)
    finally:
        server.kill()
        server.wait()


def heavy_rates(first, second):
    """Name and images a second of each way to make the heavy dataset. One processor: the mean of both.

    The consumer is on the same processors as the feed server, so that two are twice as many as one.
    """
    yield "feed, 1 processor", sum(with_server(each) for each in (first, second)) / 2
    yield "feed, 2 processors", with_server(first, second)
    yield "going nowhere, 1 processor", sum(sum(going_nowhere(each)) for each in (first, second)) / 2
    yield "going nowhere, 2 processors", sum(going_nowhere(first, second))
    yield "DataLoader, 2 workers", printed("loader", IMAGES, 2)
    if (RAY / ".ready").exists():
        yield "Ray Data, 2 processors", printed("ray", IMAGES, 2, RAY_FOLDER=str(RAY))


def with_server(*processors):
    """Images a second of a feed server with a process for each, and its consumer on them too."""
    processes = len(processors)
    port = free_port()
    command = [sys.executable, "-m", "headrace.torch.feed_server", f"--port={port}", f"--address=127.0.0.1:{port}"]
    with measure.pinned(*processors):
        server = subprocess.Popen([*command, HEAVY, "feed", str(IMAGES), str(processes)], env=environ())
    try:
        wait_for_port(port, server)
        with measure.pinned(*processors):
            feeds = {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_FEEDS": f"127.0.0.1:{port}"}
            return printed("feed", IMAGES, processes, **feeds)
    finally:
        server.kill()
        server.wait()


def going_nowhere(*processors):
    """Images a second of a process on each of these at the same time."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda each: printed("bare", IMAGES, 1, on=each), processors))


def printed(*arguments, on=None, **more):
    command = [sys.executable, str(HEAVY), *map(str, arguments)]
    command = command if on is None else ["taskset", "--cpu-list", str(on), *command]
    done = subprocess.run(command, env=environ() | more, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])["images_per_s"]


def environ():
    root = Path(__file__).parents[1]
    return os.environ | {"HEADRACE_JOB_SECRET": torch_race.SECRET, "PYTHONPATH": f"{root / 'code'}:{root}"}


if __name__ == "__main__":
    main()
