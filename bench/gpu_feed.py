"""Measure ResNet50's step time on a GPU, without and with a data host.

    PYTHONPATH=code:. python bench/gpu_feed.py [--steps 60] [--batch_size 128] [--own_cpus 2]

Needs a GPU, torch and numpy, and nvidia-ml-py for the GPU's utilisation. The model is in channels last and bfloat16.
Images of 224 × 224 are blurred in plain torch (bench/torch_heavy.py) and sent as bytes. The cases:

"homogeneous": the training process and its DataLoader's workers share `--own_cpus` processors.
"with a data host": the training process has `--own_cpus` processors. A feed server makes the batches on all other
processors.
"ideal": every step trains on one batch that is already on the GPU.
"copy in the step": a batch is copied to the GPU just before its step, on the step's CUDA stream.
"copied before the launches": the next batch is copied on a second CUDA stream. The copy starts before the program
launches the current step's kernels.
"copied after the launches": the next batch is copied on a second CUDA stream. The copy starts after the program
has launched the current step's kernels.
"compiled": the model runs under torch.compile with CUDA graphs.

The first steps are not measured: they choose kernels, and may use batches that were made ahead. The table's column
"warm-up" has the number of these steps. Nothing waits for the GPU between steps. Writes bench/out/gpu_feed.json.

Without a GPU, test the program with `--device cpu --model small --image_size 32 --batch_size 8 --steps 10`. The
figures of such a test mean nothing.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECRET = "gpu_feed"
SETTLING = 5
"""Number of first steps that choose kernels and capture graphs. Steps on batches made ahead are not measured either."""
AHEAD = 8
"""Maximum number of batches that a rank may hold."""
ORDERS = ("step", "before", "after")
COPIES = {"step": "copy in the step", "before": "copied before the launches", "after": "copied after the launches"}


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--model", choices=["resnet50", "small"], default="resnet50")
    parser.add_argument("--own_cpus", type=int, default=2, help="processors of the training process (%(default)s)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--made_ahead", type=int, default=0, help="with --measure: number of batches made ahead")
    parser.add_argument("--copy", choices=ORDERS, default="step", help="with --measure: when to copy a batch")
    parser.add_argument("--compiled", action="store_true", help="with --measure: compile the model")
    parser.add_argument("--measure", choices=["loader", "feed", "ideal"], help="measure one case, in this process")
    return parser.parse_args(argv)


def network(given):
    import torch

    from bench.resnet50 import resnet50

    if given.model == "resnet50":
        return resnet50(1000)
    pooled = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 1000))
    return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), *pooled)


def measure(given):
    """Measure one case. Print a step's milliseconds, the share of waiting and the GPU's utilisation as JSON."""
    import headrace.torch
    import torch

    from bench import torch_heavy

    torch_heavy.SIZE = given.image_size
    on_gpu, warm_up = given.device == "cuda", given.made_ahead + SETTLING
    steps, batch_bytes = warm_up + given.steps, given.batch_size * (3 * given.image_size**2 + 8)
    data = torch_heavy.Heavy(given.batch_size * (steps + 1))  # one batch is requested ahead
    options = {"pin_memory": on_gpu, "drop_last": True}
    if given.measure == "feed":
        bound = {"prefetch_bytes": AHEAD * batch_bytes}
        # A feed server runs this script only up to the next line. From there it serves batches.
        batches = iter(headrace.torch.DataLoader(data, given.batch_size, **options, **bound))
    elif given.measure == "loader":
        workers = max(len(os.sched_getaffinity(0)), 1)
        batches = iter(torch.utils.data.DataLoader(data, given.batch_size, num_workers=workers, **options))
    else:
        size = (given.batch_size, 3, given.image_size, given.image_size)
        pixels = torch.randint(0, 256, size, dtype=torch.uint8, device=given.device)
        made_up = (pixels, torch.zeros(given.batch_size, dtype=torch.int64, device=given.device))
        batches = iter([made_up] * (steps + 1))
    model = network(given).to(given.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    beside = torch.cuda.Stream() if on_gpu and given.copy != "step" else None

    def loss_of(images, labels):
        pixels = (images.float() / 255).to(memory_format=torch.channels_last)
        with torch.autocast(given.device, torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(pixels), labels)

    if given.compiled:
        loss_of = torch.compile(loss_of, mode="reduce-overhead")

    def step(images, labels):
        optimizer.zero_grad()
        loss_of(images, labels).backward()
        optimizer.step()

    def take():
        """Return the next batch on the device, the seconds spent waiting for it, and the same batch in host memory."""
        began = time.perf_counter()
        host = next(batches)
        waited = time.perf_counter() - began
        # The copy may still run after the return, so the caller must keep `host`.
        with torch.cuda.stream(beside) if beside else contextlib.nullcontext():
            return [each.to(given.device, non_blocking=True) for each in host], waited, host

    def wait_for_device():
        if on_gpu:
            torch.cuda.synchronize()

    began = waited_s = 0.0
    gpu = Utilisation(given.device)
    ahead = take() if given.copy != "step" else None
    for number in range(steps):
        if number == warm_up:
            wait_for_device()
            gpu.begin()
            began, waited_s = time.perf_counter(), 0.0
        batch, waited, _ = ahead or take()
        waited_s += waited
        if beside:
            torch.cuda.current_stream().wait_stream(beside)
            for each in batch:
                each.record_stream(torch.cuda.current_stream())
        if given.copy == "before":
            ahead = take()
        step(*batch)
        if given.copy == "after":
            ahead = take()
    wait_for_device()
    took = time.perf_counter() - began
    found = {"step_ms": took / given.steps * 1000, "waited": waited_s / took, "gpu": gpu.end(), "warm_up": warm_up}
    print(json.dumps(found))


class Utilisation:
    """Utilisation of the GPU in per cent, sampled ten times a second between `begin` and `end`."""

    def __init__(self, device):
        self._seen, self._over, self._handle = [], threading.Event(), None
        with contextlib.suppress(ImportError):
            import pynvml

            if device == "cuda":
                pynvml.nvmlInit()
                self._handle, self._nvml = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml

    def begin(self):
        if self._handle is not None:
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self):
        while not self._over.wait(0.1):
            self._seen.append(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def end(self):
        """Return the mean of the samples; None if there are none."""
        self._over.set()
        return sum(self._seen) / len(self._seen) if self._seen else None


def run(given, what, cpus, feed_cpus=(), copy="step", compiled=False):
    """Run one case in its own process on the processors `cpus`, with its feed server on `feed_cpus`."""
    # Batches made ahead. Each of torch's workers makes two. A feed server makes two for each of its processors, beside
    # the `AHEAD` batches that the rank may hold.
    ahead = {"ideal": 0, "loader": 2 * len(cpus), "feed": AHEAD + 2 * len(feed_cpus)}[what]
    names = ("steps", "batch_size", "image_size", "model", "device")
    flags = [f"--{name}={getattr(given, name)}" for name in names]
    flags += [f"--measure={what}", f"--copy={copy}", f"--made_ahead={ahead}", *(["--compiled"] if compiled else [])]
    paths = f"{ROOT / 'code'}:{ROOT}"
    environ = os.environ | {"HEADRACE_JOB_SECRET": SECRET, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(len(cpus))}
    with contextlib.ExitStack() as stack:
        if feed_cpus:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            address = f"127.0.0.1:{port}"
            command = [sys.executable, "-m", "headrace.torch.feed.server", f"--port={port}", f"--address={address}"]
            server = subprocess.Popen(
                [*command, __file__, *flags], env=environ, preexec_fn=lambda: os.sched_setaffinity(0, feed_cpus)
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
            environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_FEEDS": address}
        done = subprocess.run(
            [sys.executable, __file__, *flags],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            timeout=1200,
        )
    return json.loads(done.stdout.splitlines()[-1])


def main(argv=None):
    given = parse(argv)
    if given.measure:
        return measure(given)
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_feed: error: this torch sees no GPU")
    cpus = sorted(os.sched_getaffinity(0))
    own, others = set(cpus[: given.own_cpus]), set(cpus[given.own_cpus :]) or set(cpus)
    cases = {}
    for compiled in (False, True):
        more = ", compiled" if compiled else ""
        cases[f"ideal: the batch is on the device already{more}"] = run(given, "ideal", own, compiled=compiled)
        for copy in ("before",) if compiled else ORDERS:
            if not compiled:
                cases[f"homogeneous, {COPIES[copy]}"] = run(given, "loader", own, copy=copy)
            cases[f"with a data host, {COPIES[copy]}{more}"] = run(given, "feed", own, others, copy, compiled)
    print(f"{'case':<56}{'step ms':>9}{'waiting':>9}{'GPU %':>7}{'warm-up':>9}")
    for name, found in cases.items():
        gpu = "" if found["gpu"] is None else f"{found['gpu']:.0f}"
        print(f"{name:<56}{found['step_ms']:>9.1f}{found['waited']:>9.0%}{gpu:>7}{found['warm_up']:>9}")
    slow, fast = (cases[f"{who}, {COPIES['before']}"]["step_ms"] for who in ("homogeneous", "with a data host"))
    figures = {
        "gpu_feed_speedup": slow / fast,
        "gpu_feed_processors": len(cpus) / given.own_cpus,
        "gpu_fed_vs_ideal": cases["ideal: the batch is on the device already"]["step_ms"] / fast,
    }
    out = ROOT / "bench" / "out"
    out.mkdir(exist_ok=True)
    about = {"device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu", "processors": len(cpus)}
    (out / "gpu_feed.json").write_text(json.dumps({"figures": figures, "rows": cases, "about": about}, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name} = {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
