"""ResNet50 on a GPU, fed by few processors and by many: what the feed is for, where a GPU can be had.

    PYTHONPATH=code:. python bench/gpu_feed.py [--steps 60] [--batch_size 128] [--own_cpus 2]

Needs a GPU, torch, numpy and nothing else; nvidia-ml-py, for the GPU's utilisation. Channels last, bfloat16. Images of
224 × 224 are blurred in plain torch (bench/torch_heavy.py) and travel as bytes. "homogeneous": the training process and
its DataLoader's workers share `--own_cpus` processors. "with a data host": a feed server has all others. Each with the
copy to the GPU beside the step before ("overlapped"), and in the step. Leaves bench/out/gpu_feed.json.

`--device cpu --image_size 32 --batch_size 8` tries the program itself where there is no GPU; such figures mean nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECRET = "gpu_feed"
PORT = 6001
WARM_UP = 5


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--own_cpus", type=int, default=2, help="processors of the training process (%(default)s)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--overlapped", action="store_true")
    parser.add_argument("--measure", choices=["loader", "feed", "ideal"], help="one case, in this process")
    return parser.parse_args(argv)


def dataset(given):
    from bench import torch_heavy

    torch_heavy.SIZE = given.image_size
    return torch_heavy.Heavy(given.batch_size * (given.steps + WARM_UP))


def measure(given):
    """Step time, waiting and utilisation of one case, as JSON on standard output."""
    import headrace.torch
    import torch

    from bench.resnet50 import resnet50

    data, options = dataset(given), {"pin_memory": given.device == "cuda", "drop_last": True}
    if given.measure == "feed":
        loader = headrace.torch.DataLoader(data, given.batch_size, **options)
    else:
        workers = max(len(os.sched_getaffinity(0)), 1)
        loader = torch.utils.data.DataLoader(data, given.batch_size, num_workers=workers, **options)
    if given.measure == "ideal":
        size = (given.batch_size, 3, given.image_size, given.image_size)
        loader = [(torch.randint(0, 256, size, dtype=torch.uint8), torch.zeros(given.batch_size, dtype=torch.int64))]
        loader = loader * (given.steps + WARM_UP)
    batches = iter(loader)  # in a feed server, the script ends here
    model = resnet50(1000).to(given.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    beside = torch.cuda.Stream() if given.overlapped and given.device == "cuda" else None

    def wait():
        if given.device == "cuda":
            torch.cuda.synchronize()

    def take():
        began = time.perf_counter()
        images, labels = next(batches)
        waited = time.perf_counter() - began
        with torch.cuda.stream(beside) if beside else contextlib.nullcontext():
            return images.to(given.device, non_blocking=True), labels.to(given.device, non_blocking=True), waited

    took, waits, gpu = [], [], Utilisation(given.device)
    ahead = take() if beside else None
    for step in range(given.steps + WARM_UP - bool(beside)):
        wait()
        began = time.perf_counter()
        if beside:
            torch.cuda.current_stream().wait_stream(beside)
            (images, labels, waited), ahead = ahead, None
        else:
            images, labels, waited = take()
        pixels = (images.float() / 255).to(memory_format=torch.channels_last)
        with torch.autocast(given.device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if beside:
            ahead = take()
            waited = ahead[2]
        wait()
        if step >= WARM_UP:
            took.append(time.perf_counter() - began)
            waits.append(waited)
    print(json.dumps({"step_ms": statistics.median(took) * 1000, "mean_ms": statistics.mean(took) * 1000,
                      "waited": sum(waits) / sum(took), "gpu": gpu.mean()}))  # fmt: skip


class Utilisation:
    """The GPU's, in per cent, looked at ten times a second from now on."""

    def __init__(self, device):
        self._seen, self._handle = [], None
        with contextlib.suppress(ImportError):
            import pynvml

            if device == "cuda":
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
                threading.Thread(target=self._look, args=(pynvml,), daemon=True).start()

    def _look(self, pynvml):
        while True:
            self._seen.append(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            time.sleep(0.1)

    def mean(self):
        return statistics.mean(self._seen) if self._seen else None


def run(given, what, overlapped, cpus, feed_cpus=()):
    """One case in a process of its own, on these processors; `feed_cpus`: those of a feed server beside it."""
    flags = [f"--{name}={getattr(given, name)}" for name in ("steps", "batch_size", "image_size", "device")]
    flags += [f"--measure={what}", *(["--overlapped"] if overlapped else [])]
    paths = f"{ROOT / 'code'}:{ROOT}"
    environ = os.environ | {"HEADRACE_JOB_SECRET": SECRET, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(len(cpus))}
    with contextlib.ExitStack() as stack:
        if feed_cpus:
            address = f"127.0.0.1:{PORT}"
            command = [sys.executable, "-m", "headrace.torch.feed.server", f"--port={PORT}", f"--address={address}"]
            server = subprocess.Popen(
                [*command, __file__, *flags], env=environ, preexec_fn=lambda: os.sched_setaffinity(0, feed_cpus)
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
            environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_FEEDS": address}
        done = subprocess.run(
            [sys.executable, __file__, *flags], env=environ, stdout=subprocess.PIPE, text=True, check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus), timeout=1200,
        )  # fmt: skip
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
    cases = {"ideal: a batch in memory": run(given, "ideal", False, own)}
    for overlapped in (False, True):
        copy = "copy overlapped" if overlapped else "copy in the step"
        cases[f"homogeneous, {copy}"] = run(given, "loader", overlapped, own)
        cases[f"with a data host, {copy}"] = run(given, "feed", overlapped, own, others)
    print(f"{'case':<38}{'step ms':>9}{'mean ms':>9}{'waiting':>9}{'GPU %':>7}")
    for name, found in cases.items():
        gpu = "" if found["gpu"] is None else f"{found['gpu']:.0f}"
        print(f"{name:<38}{found['step_ms']:>9.1f}{found['mean_ms']:>9.1f}{found['waited']:>9.0%}{gpu:>7}")
    slow, fast = cases["homogeneous, copy overlapped"], cases["with a data host, copy overlapped"]
    figures = {"gpu_feed_speedup": slow["mean_ms"] / fast["mean_ms"], "gpu_feed_processors": len(cpus) / given.own_cpus}
    out = ROOT / "bench" / "out"
    out.mkdir(exist_ok=True)
    about = {"device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu", "processors": len(cpus)}
    (out / "gpu_feed.json").write_text(json.dumps({"figures": figures, "rows": cases, "about": about}, indent=1) + "\n")
    print(
        f"{figures['gpu_feed_speedup']:.2f} times faster with {figures['gpu_feed_processors']:.1f} times the processors"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
