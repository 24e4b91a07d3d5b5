"""Checkpoints of model, optimizer and loader position, saved every ten minutes, after each epoch, and before a stop.

Weights are saved under their names in the bare model, so a checkpoint does not depend on DistributedDataParallel or
torch.compile around the model.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headrace.errors import InputError
from headrace.events import CHECKPOINTS_ON_REQUEST, say
from headrace.rank.context import TrainerContext
from headrace.torch import distributed
from headrace.training.checkpoint_folder import EVERY_S, KEPT_CHECKPOINTS, CheckpointFolder
from headrace.training.signal_files import SignalFiles

STATE_FILE = "state.pt"
LOADER_FILE = "loader.json"
STOPPING_S = 30.0
"""Limit in seconds. On a stop request, rank 0 saves a checkpoint, and then waits until the launcher ends the job."""


class Checkpoint:
    """Saves checkpoints on rank 0, and resumes from the newest complete one.

    A job that resumes may have a different number of ranks. A checkpoint is a folder `epoch-NNNN`, or, within an epoch,
    `epoch-NNNN-step-NNNNNN`, where the number after `step` is the loader's position in samples. The folder gets its
    name only when all its files are on disk.

    Args:
        folder: folder of the checkpoints; by default the job's checkpoint folder.
        kept: number of checkpoints to keep.
        state: further objects to save, by name, such as a schedule; each has `state_dict` and `load_state_dict`.
        every_s: seconds between checkpoints within an epoch; 0: only at the end of an epoch.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        kept: int = KEPT_CHECKPOINTS,
        state: Mapping[str, Any] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._every_s = every_s
        context = TrainerContext.from_environ(os.environ)
        self._folder = CheckpointFolder(Path(folder) if folder else context.checkpoint_dir, STATE_FILE, kept)
        self._signals = SignalFiles(context.signal_dir, distributed.rank)
        self._state = dict(state or {})

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
        """Load the newest checkpoint, if there is one, on every rank, and return the next epoch to train.

        Rank 0 reads the files and sends them to the other ranks, so only rank 0's host needs the files.

        Raises:
            InputError: the checkpoint is unsafe to load, or does not fit the model, optimizer or objects in `state`.
        """
        file = record = b""
        path = self._folder.newest() if distributed.rank() == 0 else None
        if path is not None:
            self._folder.tell_of_own()
            file, record = (path / STATE_FILE).read_bytes(), (path / LOADER_FILE).read_bytes()
            epoch, step = self._folder.place()
            say("resumed", epoch=epoch, step=step, path=path)
        if distributed.rank() == 0:
            say(CHECKPOINTS_ON_REQUEST)
        # The ranks exchange bytes: torch would pickle objects, and gloo does not authenticate the sender.
        file, record = distributed.from_rank_0(file), distributed.from_rank_0(record)
        if not file:
            return 0
        try:
            state = torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
            place = json.loads(record)
            bare(model).load_state_dict(state["model"])
            for group in state["optimizer"].get("param_groups", ()):
                group.pop("param_names", None)  # drop saved names: a wrapper such as DDP changes parameters' names
            optimizer.load_state_dict(state["optimizer"])
            for name, each in self._state.items():
                each.load_state_dict(state["more"][name])
        except pickle.UnpicklingError as error:
            raise InputError(
                f"the newest checkpoint is unsafe to load ({error!s:.200}); delete it and save only numbers and tensors"
            ) from error
        except (KeyError, ValueError, RuntimeError) as error:
            raise InputError(
                "the newest checkpoint does not fit the model, the optimizer or the objects in Checkpoint(state=...) "
                f"({' '.join(str(error).split())[:300]}). Delete this checkpoint, or give another --checkpoint_s3_uri"
            ) from error
        loader.load_state_dict(place)
        return int(place["epoch"])

    def step_made(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        """Make a checkpoint if one is due or a stop is requested. At a stop, wait until the launcher ends this rank."""
        stops = distributed.rank() == 0 and self._signals.stop_requested()
        # All ranks hold the same weights, so rank 0 can save them alone.
        if stops or (distributed.rank() == 0 and self._folder.is_due(self._every_s)):
            self.save(model, optimizer, loader.state_dict())
        if stops:
            time.sleep(STOPPING_S)  # the launcher ends the job meanwhile

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, place: Mapping[str, int]) -> None:
        """Make a checkpoint on rank 0; `place` is the loader's `state_dict()`. Does nothing on other ranks."""
        if distributed.rank() != 0:
            return
        more = {name: each.state_dict() for name, each in self._state.items()}
        state = {"model": bare(model).state_dict(), "optimizer": optimizer.state_dict(), "more": more}
        write = functools.partial(torch.save, state)
        path = self._folder.save(place["epoch"], place["position"], write, {LOADER_FILE: dict(place)})
        say("checkpoint", epoch=place["epoch"], path=path)


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without the wrappers of DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif "_orig_mod" in model._modules:  # from torch.compile
            model = model._modules["_orig_mod"]
        else:
            return model
