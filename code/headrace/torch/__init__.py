"""The PyTorch interface: a data loader, the ranks, and training with measurements and checkpoints."""

from headrace.torch.checkpoint import Checkpoint
from headrace.torch.dataloader import DataLoader
from headrace.torch.distributed import device, init, local_rank, rank, world_size
from headrace.torch.feed.script import is_feed_server
from headrace.torch.training import Training, average

__all__ = [
    "Checkpoint",
    "DataLoader",
    "Training",
    "average",
    "device",
    "init",
    "is_feed_server",
    "local_rank",
    "rank",
    "world_size",
]
