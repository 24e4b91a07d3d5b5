"""Checkpoints: model, optimizer and the loader's place, at each epoch's end, every ten minutes, and before a stop."""

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

from headrace.context import TrainerContext
from headrace.errors import InputError
from headrace.events import CHECKPOINTS_ON_REQUEST, say
from headrace.torch import distributed as world
from headrace.training.checkpoint_folder import EVERY_S, KEPT_CHECKPOINTS, CheckpointFolder
from headrace.training.signal_files import SignalFiles

STATE_FILE = "state.pt"
LOADER_FILE = "loader.json"
STOPPING_S = 30.0
"""After a checkpoint on request, rank 0 waits here to be ended."""


class Checkpoint:
    """Keeps a checkpoint of each epoch, and in long ones more, on rank 0; resumes from the newest whole one, on any
    number of ranks.

    A checkpoint is a folder `epoch-NNNN` (or `epoch-NNNN-step-NNNNNN`, made when the job was asked to stop or when the
    last one was `every_s` ago; the number is the loader's position, in samples) that appears under its name only when
    all of it is on disk.

    Args:
        folder: where; by default the job's checkpoint folder.
        kept: how many to keep.
        state: what else to keep: objects with `state_dict` and `load_state_dict`, such as a schedule, by name.
        every_s: seconds after which one is made in mid-epoch; 0: none is.
    """

    def __init__(self, folder: str | Path | None = None, kept: int = KEPT_CHECKPOINTS,
                 state: Mapping[str, Any] | None = None, every_s: float = EVERY_S) -> None:  # fmt: skip
        self._every_s = every_s
        context = TrainerContext.from_environ(os.environ)
        self._folder = CheckpointFolder(Path(folder) if folder else context.checkpoint_dir, STATE_FILE, kept)
        self._signals = SignalFiles(context.signal_dir, world.rank)
        self._state = dict(state or {})

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
        """Load the newest checkpoint, where there is one, on every rank; the epoch that is to be trained next.

        Rank 0 reads; the others get everything from it, so that only its host needs the files.

        Raises:
            InputError: it is of another model.
        """
        file = record = b""
        path = self._folder.newest() if world.rank() == 0 else None
        if path is not None:
            self._folder.tell_of_own()
            file, record = (path / STATE_FILE).read_bytes(), (path / LOADER_FILE).read_bytes()
            epoch, step = self._folder.place()
            say("resumed", epoch=epoch, step=step, path=path)
        if world.rank() == 0:
            say(CHECKPOINTS_ON_REQUEST)
        # As bytes: torch would pickle objects on their way, and gloo does not know who sends.
        file, record = world.from_rank_0(file), world.from_rank_0(record)
        if not file:
            return 0
        try:
            state = torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
            place = json.loads(record)
            bare(model).load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            for name, each in self._state.items():
                each.load_state_dict(state["more"][name])
        except pickle.UnpicklingError as error:
            raise InputError(
                f"the newest checkpoint holds what may not be loaded ({error!s:.200}); keep numbers and tensors only"
            ) from error
        except (KeyError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the newest checkpoint is of another model, or keeps other state ({error!s:.300}); delete it, or give "
                "another folder (--checkpoint_s3_uri)"
            ) from error
        loader.load_state_dict(place)
        return int(place["epoch"])

    def step_made(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        """Keep a checkpoint if one is due; if the job is to stop, then wait to be ended."""
        stops = world.rank() == 0 and self._signals.stop_requested()
        # All ranks hold the same weights, so rank 0 can save them alone.
        if stops or (world.rank() == 0 and self._folder.is_due(self._every_s)):
            self.save(model, optimizer, loader.state_dict())
        if stops:
            time.sleep(STOPPING_S)  # the launcher ends the job

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, place: Mapping[str, int]) -> None:
        """Keep a checkpoint; rank 0 does, the others do nothing.

        Args:
            place: the loader's state.
        """
        if world.rank() != 0:
            return
        more = {name: each.state_dict() for name, each in self._state.items()}
        state = {"model": bare(model).state_dict(), "optimizer": optimizer.state_dict(), "more": more}
        epoch, position = place["epoch"], place["position"]
        write = functools.partial(torch.save, state)
        path = self._folder.save(epoch, position, write, {LOADER_FILE: dict(place)})
        say("checkpoint", epoch=place["epoch"], path=path)


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, without what distributes it."""
    wrapped = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return model.module if isinstance(model, wrapped) else model
