"""Checkpoints of model, optimizer and the loader's place: at each epoch's end, every ten minutes, and before a stop.

What distributes or compiles a model makes no difference to its checkpoint: weights are kept under the names that they
have in the bare model.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
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
"""Rank 0 waits this long to be ended after a checkpoint on request."""
_COMPILED = "_orig_mod"
"""The name under which what torch.compile returns holds the module."""


class Checkpoint:
    """Keeps a checkpoint of each epoch, and more in long epochs, on rank 0; resumes from the newest complete one.

    The job that resumes may have another number of ranks. A checkpoint is a folder `epoch-NNNN`, or
    `epoch-NNNN-step-NNNNNN` in mid-epoch, where the number is the loader's position in samples. The folder appears
    under its name only when all of it is on disk.

    Args:
        folder: where checkpoints are; by default the job's checkpoint folder.
        kept: how many checkpoints to keep.
        state: more objects to keep, by name, which have `state_dict` and `load_state_dict`: a schedule, for example.
        every_s: seconds after which a checkpoint is made in mid-epoch; 0: only where an epoch ends.
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
        """Load the newest checkpoint, if there is one, on every rank, and return the epoch to be trained next.

        Rank 0 reads the files and sends them to the other ranks, so that only its host needs them.

        Raises:
            InputError: the checkpoint is of another model.
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
        # Bytes are sent: torch would pickle objects on their way, and gloo does not know who sends.
        file, record = distributed.from_rank_0(file), distributed.from_rank_0(record)
        if not file:
            return 0
        try:
            state = torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
            place = json.loads(record)
            _load_state(bare(model), state["model"])
            for group in state["optimizer"].get("param_groups", ()):
                group.pop("param_names", None)  # the optimizer's own stay: they say how the model is wrapped now
            optimizer.load_state_dict(state["optimizer"])
            for name, each in self._state.items():
                _load_state(each, state["more"][name])
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
        """Make a checkpoint if one is due or the job is to stop; in the latter case wait to be ended afterwards."""
        stops = distributed.rank() == 0 and self._signals.stop_requested()
        # All ranks hold the same weights, so rank 0 can save them alone.
        if stops or (distributed.rank() == 0 and self._folder.is_due(self._every_s)):
            self.save(model, optimizer, loader.state_dict())
        if stops:
            time.sleep(STOPPING_S)  # the launcher ends the job

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, place: Mapping[str, int]) -> None:
        """Make a checkpoint on rank 0; does nothing on other ranks.

        Args:
            place: the loader's state.
        """
        if distributed.rank() != 0:
            return
        more = {name: _state_of(each) for name, each in self._state.items()}
        state = {"model": _state_of(bare(model)), "optimizer": optimizer.state_dict(), "more": more}
        epoch, position = place["epoch"], place["position"]
        write = functools.partial(torch.save, state)
        path = self._folder.save(epoch, position, write, {LOADER_FILE: dict(place)})
        say("checkpoint", epoch=place["epoch"], path=path)


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model itself, without what distributes or compiles it, in whichever order."""
    while True:
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif _COMPILED in model._modules:
            model = model._modules[_COMPILED]
        else:
            return model


def _state_of(holder: Any) -> Any:
    """Return an object's state. A module's has the names that it would have if none of its parts were compiled."""
    state = holder.state_dict()
    return _renamed(state, _uncompiled) if isinstance(holder, torch.nn.Module) else state


def _load_state(holder: Any, state: Any) -> None:
    """Load an object's state. A module's parts may be compiled now, or may have been then."""
    if isinstance(holder, torch.nn.Module):
        now = holder.state_dict()
        names = {_uncompiled(name): name for name in (*now, *getattr(now, "_metadata", ()))}
        state = _renamed(_renamed(state, _uncompiled), lambda name: names.get(name, name))
    holder.load_state_dict(state)


def _uncompiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def _renamed(state: Any, rename: Callable[[str], str]) -> Any:
    """Return a module's state under other names, with the modules' versions, which torch keeps beside it."""
    renamed: Any = OrderedDict((rename(name), value) for name, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        renamed._metadata = OrderedDict((rename(name), value) for name, value in versions.items())
    return renamed
