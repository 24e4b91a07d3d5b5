"""The training loop of one rank, with its checkpoints and measurements, without a launcher."""

import io
import json
import random
import time

import headrace.torch
import numpy as np
import pytest
import torch._dynamo  # imported once here, not in each forked rank that makes an optimizer
from headrace.errors import InputError
from headrace.torch.training import samples_of
from headrace.training import meter

from tests.torch.connected_ranks import in_ranks
from tests.torch.fresh import forget_loaders


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Function that returns a `Training` on 40 samples in batches of 8. It writes to `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(meter, "_ended", [])

    def made(size=40, **options):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        data = torch.utils.data.TensorDataset(torch.arange(float(size))[:, None])
        loader = headrace.torch.DataLoader(data, **({"batch_size": 8, "shuffle": True} | options))
        return headrace.torch.Training(model, optimizer, loader, 1, headrace.torch.Checkpoint("kept"))

    return made


def seen_in(training, epochs, steps=None):
    """Train, and return the samples of each epoch.

    Args:
        steps: number of steps after which the script ends an epoch; None: it takes all batches.
    """
    found = {}
    for epoch in training.epochs(epochs):
        for step, (numbers,) in enumerate(training.steps()):
            found.setdefault(epoch, []).extend(int(each) for each in numbers[:, 0])
            if step + 1 == steps:
                break
        training.end_epoch(loss=epoch)
    return found


def report_in(folder):
    return json.loads((folder / "output" / "trainer.json").read_text())


@pytest.mark.parametrize(("steps", "samples"), [(None, 40), (2, 16)], ids=["whole epochs", "the script ends them"])
def test_a_training_resumes_with_the_epoch_after_the_newest_checkpoint(begin, steps, samples):
    first = seen_in(begin(), 2, steps)
    assert [len(set(each)) for each in first.values()] == [samples] * 2 and first[0] != first[1]
    assert list(seen_in(begin(), 3)) == [2]


@pytest.mark.usefixtures("begin")
def test_the_report_covers_a_training_that_stopped_early_and_the_next_one(tmp_path):
    model = torch.nn.Linear(1, 1)
    loader = headrace.torch.DataLoader(torch.utils.data.TensorDataset(torch.zeros(16, 1)), 8)
    for epochs in (9, 3):
        training = headrace.torch.Training(model, torch.optim.SGD(model.parameters(), 0.01), loader)
        for epoch in training.epochs(epochs):
            assert len(list(training.steps())) == 2
            training.end_epoch(loss=float(epochs))
            if epoch == 1:
                break
    report = report_in(tmp_path)
    assert (report["steps"], report["epochs"], report["final_metrics"]) == (8, 4, {"loss": 3.0})


def test_a_long_epoch_has_checkpoints_and_resumes_there_after_a_crash(begin, tmp_path):
    training, seen = begin(), []
    training._checkpoint = headrace.torch.Checkpoint("kept", every_s=1e-9)
    for _ in training.epochs(1):
        for step, (numbers,) in enumerate(training.steps()):
            if step == 3:
                break  # as if the process had crashed here
            seen += numbers[:, 0].int().tolist()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        f"epoch-0000-step-{position:06d}" for position in (8, 16, 24)
    ]
    seen += seen_in(begin(), 1)[0]
    assert sorted(seen) == list(range(40))


def test_the_report_has_steps_epochs_metrics_and_an_input_bound_share_estimated_from_the_waits(begin, tmp_path):
    seen_in(begin(), 2)
    report = report_in(tmp_path)
    assert (report["steps"], report["epochs"], report["final_metrics"]) == (10, 2, {"loss": 1.0})
    assert 0 <= report["input_bound_share"] <= 1 and report["samples_per_s"] > 0
    assert report["ideal_step_from"] == "waits" and report["ideal_step_time_error_ms"] == 0
    assert sum(report["step_parts_ms"].values()) == pytest.approx(report["step_time_ms"]["mean"], abs=0.01)
    assert any((tmp_path / "output" / "tensorboard").iterdir())


def test_a_sampler_that_says_too_short_a_length_is_not_counted_on(begin, capfd):
    class Longer(torch.utils.data.SequentialSampler):
        def __len__(self):
            return 8

    training = begin(shuffle=None, sampler=Longer(range(40)))
    for _ in training.epochs(1):
        assert len(list(training.steps(5))) == 5
    assert "total_steps=5" in capfd.readouterr().out


def test_a_loader_without_a_batch_is_an_error(begin):
    with pytest.raises(InputError, match="the loader gives no batch"):
        seen_in(begin(size=5, drop_last=True), 1)


def test_the_last_of_several_checkpoints_in_an_epoch_is_resumed(begin, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.torch.checkpoint.STOPPING_S", 0.0)
    for stops in (900_000, 1_100_000):
        training = begin()
        checkpoint = training._checkpoint
        place = {"seed": 0, "epoch": 0, "position": stops}
        checkpoint.save(training._model, training._optimizer, place)
    loader = begin()._loader
    assert checkpoint.restore(training._model, training._optimizer, loader) == 0
    assert loader.state_dict()["position"] == 1_100_000


def test_the_steps_of_an_epoch_include_those_before_a_resume(begin, tmp_path):
    training, made = begin(), []
    for _ in training.epochs(2):
        made.append(len(list(training.steps(2))))
        training.end_epoch()
    assert made == [2, 2]
    meter._ended.clear()  # the next run is another process
    again = begin(seed=1)
    again._loader.load_state_dict({"seed": 1, "epoch": 0, "position": 24})
    again._meter.begin()
    assert len(list(again.steps(4))) == 1
    again.end_epoch()
    report = report_in(tmp_path)
    assert (report["steps"], report["steps_per_epoch"]) == (1, 4)


@pytest.mark.parametrize(("shared", "left"), [(True, 2), (False, 1)])
def test_the_steps_before_a_resume_follow_from_how_many_ranks_share_the_loader(begin, monkeypatch, shared, left):
    monkeypatch.setenv("WORLD_SIZE", "2")
    training = begin(seed=1, shard_by_rank=shared)
    training._loader.load_state_dict({"seed": 1, "epoch": 0, "position": 16})
    training._meter.begin()
    assert len(list(training.steps(3))) == left


@pytest.mark.parametrize(("most", "total"), [(2, 4), (None, 10), (500, 10)])
def test_the_first_step_says_how_many_are_to_come_and_a_loader_that_has_fewer_is_logged(begin, capfd, most, total):
    training = begin()
    for _ in training.epochs(2):
        list(training.steps(most))
        training.end_epoch()
    said = capfd.readouterr().out
    assert f"total_steps={total}" in said
    assert said.count("event=short_epoch steps=5 asked_for=500") == (most == 500)


class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(16.0)[:, None])


def test_a_training_on_a_stream_resumes_from_a_stop_at_an_epochs_last_step():
    loader = headrace.torch.DataLoader(Numbers(), 8)
    for _ in loader:
        state = loader.state_dict()  # what a checkpoint holds if the job is asked to stop at this step
    model = torch.nn.Linear(1, 1)
    again = headrace.torch.DataLoader(Numbers(), 8)
    again.load_state_dict(state)
    training = headrace.torch.Training(model, torch.optim.SGD(model.parameters(), 0.01), again)
    assert [len(list(training.steps())) for _ in training.epochs(2)] == [0, 2]


def test_the_report_counts_the_samples_in_the_batches_of_a_batch_sampler(begin, tmp_path):
    batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(24)), 8, drop_last=False)
    seen_in(begin(24, batch_size=1, shuffle=None, batch_sampler=batches), 1)
    report = report_in(tmp_path)
    assert report["global_batch_size"] == 8 and report["sample_bytes"] == 4


def test_a_batch_without_a_known_size_counts_as_empty_and_raises_nothing():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert samples_of({"words": nested}) == samples_of(["a", 1]) == 0
    assert samples_of({"ids": ["a"], "images": torch.zeros(5, 3)}) == 5


class Drawing(torch.nn.Module):
    """A module whose steps change weights and buffers, replace a buffer, and draw from three random generators."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        noise = random.random() + float(np.random.rand())
        return self.last(self.drop(self.norm(self.first(x)))) + noise


def trained(measures, make_optimizer, steps=6):
    """Train. If `measures`, measure the ideal step first. Return losses, random draws, and a checkpoint's bytes."""
    forget_loaders()
    random.seed(0)
    np.random.seed(0)
    model = Drawing()
    network = torch.nn.parallel.DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    training = headrace.torch.Training(network, optimizer, headrace.torch.DataLoader(data, 8, shuffle=True, seed=1))
    losses = []

    def step(batch):
        def loss_of():
            optimizer.zero_grad()
            loss = network(batch[0]).square().mean()
            loss.backward()
            return loss

        losses.append(float(optimizer.step(loss_of).detach()))
        schedule.step()

    if measures:
        training.measure_ideal_step(step, [torch.randn(8, 4, generator=torch.Generator().manual_seed(2))], schedule)
        assert losses, "no step was measured"
        losses.clear()
        assert all(each.grad is None for each in model.parameters())
    for _ in training.epochs(1):
        for batch in training.steps(steps):
            step(batch)
        training.end_epoch()
    draws = (random.random(), float(np.random.rand()), float(torch.rand(())))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    kept = io.BytesIO()
    torch.save(state, kept)
    return losses, draws, kept.getvalue()


OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("begin")
def test_training_is_the_same_to_the_last_bit_whether_the_ideal_step_is_measured(name):
    assert trained(True, OPTIMIZERS[name]) == trained(False, OPTIMIZERS[name])


@pytest.mark.usefixtures("begin")
def test_two_ranks_measure_together_and_train_the_same_as_without(tmp_path):
    def same(rank):
        return trained(True, OPTIMIZERS["adam"]) == trained(False, OPTIMIZERS["adam"])

    assert in_ranks(same, tmp_path) == [True, True]


def test_a_measured_ideal_step_is_reported_with_its_error_and_what_a_step_goes_into(begin, tmp_path):
    training = begin()
    training._loader = Slow(training._loader, 0.02)

    def step(batch):
        time.sleep(0.01)

    training.measure_ideal_step(step, torch.zeros(8, 1))
    for _ in training.epochs(1):
        for batch in training.steps():
            step(batch)
        training.end_epoch()
    report = report_in(tmp_path)
    parts, step_ms = report["step_parts_ms"], report["step_time_ms"]["mean"]
    assert report["ideal_step_from"] == "measured" and report["ideal_step_time_error_ms"] > 0
    assert 10 <= report["ideal_step_time_ms"] <= report["step_time_ms"]["median"] * 1.01  # its upper limit
    assert parts["waiting"] >= 20 and parts["copying"] == 0
    assert sum(parts.values()) == pytest.approx(step_ms, abs=0.01)
    assert report["input_bound_share"] == pytest.approx(max(1 - report["ideal_step_time_ms"] / step_ms, 0), abs=0.05)


class Slow:
    """A loader that takes `batch_s` seconds longer for each batch."""

    def __init__(self, loader, batch_s):
        self._loader, self._batch_s = loader, batch_s

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        for batch in self._loader:
            time.sleep(self._batch_s)
            yield batch


def test_a_step_that_fails_while_it_is_measured_leaves_all_as_it_was(begin):
    training = begin()
    before = [each.clone() for each in training._model.parameters()]

    def step(batch):
        with torch.no_grad():
            training._model.weight.add_(1)
        raise ValueError("of the script")

    with pytest.raises(ValueError, match="of the script"):
        training.measure_ideal_step(step, torch.zeros(8, 1))
    assert all(map(torch.equal, before, training._model.parameters()))
