"""Compare PyTorch's ideal step time with the time of real steps that never wait for data; see bench/ideal.py.

.venv-torch/bin/python -m bench.torch_ideal [--repeats 10]
"""

import itertools
import time

from bench import measure
from bench.ideal import BATCH, LEAST_STEPS, LEAST_TURNS, RUN_S, TRAIN_S, compare


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=10).repeats
    compare("torch_ideal", one, repeats)


def one(name, size):
    """Alternate between training and a measurement of the ideal step time. Return two lists, in ms: the ideal step
    times, and the median step time of each training."""
    import torch
    from headrace.torch.torch_ideal_step import measure_ideal_step

    torch.manual_seed(0)
    batch = (torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.int64))
    model = network(torch, name, size)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def ideal():
        return measure_ideal_step(step, batch, model, optimizer, ())[0].ms

    def trained_ms(step_ms):
        times = [time.perf_counter()]
        for _ in range(max(int(TRAIN_S * 1000 / step_ms), LEAST_STEPS)):
            step(batch)
            times.append(time.perf_counter())
        return measure.median([1000 * (after - before) for before, after in itertools.pairwise(times)])

    ideal_ms, train_ms = [], [trained_ms(ideal())]
    end = time.monotonic() + RUN_S
    while len(ideal_ms) < LEAST_TURNS or time.monotonic() < end:
        ideal_ms.append(ideal())
        train_ms.append(trained_ms(ideal_ms[-1]))
    median_ms = [measure.median(each) for each in (ideal_ms, train_ms)]
    print(f"torch_ideal: {name}: ideal step {median_ms[0]:.2f} ms, step in training {median_ms[1]:.2f} ms", flush=True)
    return ideal_ms, train_ms


def network(torch, name, size):
    """Return a classifier of ten classes."""
    from bench.resnet50 import resnet50

    nn = torch.nn
    if name == "resnet50":
        return resnet50(10)
    if name == "small_cnn":
        widths = itertools.pairwise((3, 16, 32, 64))
        middle = [each for pair in widths for each in (nn.Conv2d(*pair, 3, 2, 1), nn.ReLU())]
        middle += [nn.Flatten(), nn.Linear(64 * (size // 8) ** 2, 64), nn.ReLU()]
        return nn.Sequential(*middle, nn.Linear(64, 10))
    middle = (nn.Linear(3 * size * size, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *middle, nn.Linear(512, 10))


if __name__ == "__main__":
    main()
