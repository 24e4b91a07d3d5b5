"""Compare headrace's feed for PyTorch with other transports and loaders, and measure the gain from a second processor.

    python -m bench torch [--repeats 5]        (with .venv-torch's Python: make setup-torch)

First, a server on one processor sends the same batch of 32 images again and again to a consumer on another processor.
This is done with five transports. The transport "tcp" copies bytes into the same memory each time. The other
transports return new tensors. The transport "pickle" sends pickled batches in one gRPC stream, like the public
sample code of ADR 21. Then an epoch of a heavy dataset (bench/torch_heavy.py) is made on two processors: by feed server
and consumer, by torch's DataLoader, and by Ray Data if `tools/peers.py` has installed it. Then the gain from the second
processor is measured (bench/torch_scaling.py).
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from bench import measure, torch_race, torch_scaling
from tests.ports import free_port
from tests.support import wait_for_port

WAYS = ("tcp", "feed", "grpc", "pickle", "flight")
FORMS = ("uint8_224", "float32_224", "uint8_32")
IMAGES = 4800
TURNS = 2
"""Turns in `torch_scaling.rates` for each repeat. A turn measures one processor, then the other, then both."""
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
    scaling = torch_scaling.rates(TURNS * repeats, environ(), feed_server)
    for name, of_turns in scaling.items():
        heavy[f"{name}, 1 processor"] = [(one + other) / 2 for one, other, _ in of_turns]
        heavy[f"{name}, 2 processors"] = [both for _, _, both in of_turns]

    def ratio(of, one, other):
        return measure.median([a / b for a, b in zip(of[one], of[other], strict=True)])

    rows = [
        {
            "form, way": f"{form} {way}",
            "images/s": measure.median(rates[form, way]),
            "images/s per consumer core": measure.median(per_core[form, way]),
        }
        for form in FORMS
        for way in WAYS
    ]
    rows += [
        {"form, way": f"heavy, {name}", "images/s": measure.median(found), "images/s per consumer core": ""}
        for name, found in heavy.items()
    ]
    figures = {
        "torch_feed_vs_tcp": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "tcp")),
        "torch_feed_vs_grpc": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "grpc")),
        "torch_feed_vs_flight": ratio(rates, ("uint8_224", "feed"), ("uint8_224", "flight")),
        "torch_feed_vs_pickle_queue": ratio(per_core, ("uint8_224", "feed"), ("uint8_224", "pickle")),
        "torch_feed_uint8_vs_pickle_queue_float32": ratio(per_core, ("uint8_224", "feed"), ("float32_224", "pickle")),
        "torch_scaling_efficiency": torch_scaling.gain(scaling["feed"]),
        "torch_scaling_vs_processors": torch_scaling.gain(scaling["feed"])
        / torch_scaling.gain(scaling["going nowhere"]),
        "torch_epoch_vs_local_loader": ratio(heavy, "epoch by the feed", "epoch by DataLoader, 2 workers"),
    }
    if "epoch by Ray Data" in heavy:
        figures["torch_epoch_vs_ray_data"] = ratio(heavy, "epoch by the feed", "epoch by Ray Data")
    measure.leave("torch", figures, rows, repeats=repeats)


def one_way(way, form, server_processor, own_processor):
    """Return two rates: images per second of elapsed time, and images per second of the consumer's CPU time."""
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
    """Make an epoch of the heavy dataset on two processors, in several ways. For each, yield a name and images/s."""
    with feed_server([HEAVY, "feed", str(IMAGES), "2"], first, second) as feeds:
        yield "epoch by the feed", printed("feed", **feeds)
    yield "epoch by DataLoader, 2 workers", printed("loader")
    if (RAY / ".ready").exists():
        yield "epoch by Ray Data", printed("ray", RAY_FOLDER=str(RAY))


@contextlib.contextmanager
def feed_server(script, *processors):
    """Run a feed server on these processors. `script`: path, arguments. Yield environment variables for a consumer."""
    port = free_port()
    command = [sys.executable, "-m", "headrace.torch.feed.server", f"--port={port}", f"--address=127.0.0.1:{port}"]
    with measure.pinned(*processors):
        server = subprocess.Popen([*command, *script], env=environ())
    try:
        wait_for_port(port, server)
        yield {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_FEEDS": f"127.0.0.1:{port}"}
    finally:
        server.kill()
        server.wait()


def printed(way, **more):
    command = [sys.executable, str(HEAVY), way, str(IMAGES), "2"]
    done = subprocess.run(command, env=environ() | more, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])["images_per_s"]


def environ():
    root = Path(__file__).parents[1]
    return os.environ | {"HEADRACE_JOB_SECRET": torch_race.SECRET, "PYTHONPATH": f"{root / 'code'}:{root}"}


if __name__ == "__main__":
    main()
