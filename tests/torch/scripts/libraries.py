"""Train with several libraries, such as Lightning. Print whether the ranks got each sample as often as expected."""

import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import datasets
import headrace.torch
import lightning
import torch
import webdataset
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Sampler

SAMPLES, EPOCHS = 64, 2


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class RepeatAugmented(Sampler):
    """A sampler like timm's. It repeats each sample, and divides the repetitions among the ranks."""

    def __init__(self, rank, world, repeats=2):
        self.num_replicas, self.rank, self.repeats, self.epoch = world, rank, repeats, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(self.repeats).tolist()[self.rank :: self.num_replicas])

    def __len__(self):
        return SAMPLES * self.repeats // self.num_replicas


def shards_of_tar():
    folder = Path(tempfile.mkdtemp())  # each process writes its own copy of the same data
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for index in range(shard, SAMPLES, 4):
                text = str(index).encode()
                info = tarfile.TarInfo(f"{index}.txt")
                info.size = len(text)
                tar.addfile(info, BytesIO(text))
    files = f"{folder}/{{0..3}}.tar"
    data = webdataset.WebDataset(files, shardshuffle=False, nodesplitter=webdataset.split_by_node, empty_check=False)
    return data.to_tuple("txt").map(lambda sample: torch.tensor([float(sample[0])]))


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch):
        self.seen += batch.flatten().tolist()
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)


def net():
    return DistributedDataParallel(torch.nn.Linear(1, 1))


def train(model, loader, numbers, device="cpu"):
    optimizer, seen = torch.optim.SGD(model.parameters(), 1e-6), []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            x = numbers(batch).float().to(device)
            seen += x.flatten().tolist()
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen


def with_accelerate(loader):
    model, prepared = Accelerator(cpu=True).prepare(torch.nn.Linear(1, 1), loader)
    assert prepared is loader
    return train(model, loader, torch.Tensor.float)


def with_lightning(loader):
    ranks, model = headrace.torch.world_size(), Lit()
    lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(model, loader)
    return model.seen


def with_training(loader):
    model, seen = torch.compile(net(), backend="eager"), []
    training = headrace.torch.Training(model, torch.optim.SGD(model.parameters(), 1e-6), loader)
    for _ in training.epochs(EPOCHS):
        for x in training.steps():
            seen += x.flatten().tolist()
            model(x).mean().backward()
        training.end_epoch()
    return seen


headrace.torch.init()
make, rank, ranks = headrace.torch.DataLoader, headrace.torch.rank(), headrace.torch.world_size()
table = datasets.Dataset.from_dict({"x": [[float(index)] for index in range(SAMPLES)]})
stream = table.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=8)
loaders = {
    "accelerate": make(Numbers(), 8, shuffle=True, device="cpu"),
    "lightning": make(Numbers(), 8, shuffle=True),
    "compiled": make(Numbers(), 8, shuffle=True),
    "datasets": make(table.with_format("torch"), 8, shuffle=True),
    "streaming": make(stream.with_format("torch"), 4, shards=4),
    "webdataset": make(shards_of_tar(), 4, shards=4),
    "repeated": make(Numbers(), 8, sampler=RepeatAugmented(rank, ranks), shard_by_rank=False),
}
ways = {
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "compiled": with_training,
    "datasets": lambda loader: train(net(), loader, lambda batch: batch["x"]),
    "streaming": lambda loader: train(net(), loader, lambda batch: batch["x"]),
    "webdataset": lambda loader: train(net(), loader, torch.Tensor.float),
    "repeated": lambda loader: train(net(), loader, torch.Tensor.float),
}
for name, way in ways.items():
    of_ranks = [None] * ranks
    torch.distributed.all_gather_object(of_ranks, way(loaders[name]))
    repeats = EPOCHS * (2 if name == "repeated" else 1)
    exact = sorted(sample for each in of_ranks for sample in each) == sorted(list(range(SAMPLES)) * repeats)
    if rank == 0:
        print(
            f"trained with {name}: each sample once: {exact}, on data hosts: {loaders[name].made_elsewhere}", flush=True
        )
