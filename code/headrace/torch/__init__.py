"""What a PyTorch training script uses: the loader, the ranks, training with measurements and checkpoints."""

from headrace.torch.checkpoint import Checkpoint
from headrace.torch.dataloader import DataLoader
from headrace.torch.distributed import device, init, local_rank, rank, world_size
from headrace.torch.own_connection import look_after_connection
from headrace.torch.registry import is_feed_server
from headrace.torch.training import Training, average

__all__ = [
    "Checkpoint", "DataLoader", "Training", "average", "device", "init", "is_feed_server", "local_rank", "rank",
    "world_size",
]  # fmt: skip

look_after_connection()
