"""The shape of what launcher, ranks and desk know of a framework: data, and a few functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Said(NamedTuple):
    """What an error says, without the lines around it."""

    lines: Sequence[str]
    names_its_type: bool = False
    """Whether the lines begin with the type of the error that was raised first."""


@dataclass(frozen=True)
class RankFacts:
    """What the environment of ranks follows from."""

    world_size: int
    leader_address: str
    stall_timeout_s: float
    environ: Mapping[str, str]
    """The host's own."""


@dataclass(frozen=True)
class StallWords:
    """How a reducer says in the log which ranks it waits for: some lines, then one for each missing rank."""

    reducer: str
    complaint: re.Pattern[str]
    missing_rank: re.Pattern[str]
    """Has the groups `rank` and `first`, the first tensor that is waited for."""


@dataclass(frozen=True)
class Installer:
    """What a host installs before its ranks start."""

    what: str
    module: str
    """Run as `python -m MODULE SOURCE_DIR`."""
    is_needed: Callable[[Path, Mapping[str, str]], bool]
    """Asked with the source dir and the host's environment."""


def _no_environ(_: Mapping[str, str]) -> dict[str, str]:
    return {}


def _no_advice(_: BaseException, __: str) -> str:
    return ""


def _nothing() -> None:
    pass


def _nothing_before(_: MutableMapping[str, str]) -> None:
    pass


@dataclass(frozen=True)
class Framework:
    """All that headrace knows of a framework outside of the framework's own package."""

    name: str
    """The value of --framework."""
    title: str
    training_script: str
    """What a job runs unless a flag says otherwise, and what a new project starts from."""
    image_version: str
    """The version of AWS's training image that jobs use."""
    modules: tuple[str, ...]
    """What a job on this machine imports."""
    how_to_install: str
    data_service: str
    """Which of `headrace.host.services` makes its batches."""
    without_sharing: str
    """How a script says that each host reads all of its own files."""
    measured_by: str
    """What a script adds so that its steps are measured."""
    rank_environ: Callable[[RankFacts], dict[str, str]]
    """Variables of mpirun and the ranks."""
    what_is_said: Callable[[Sequence[str]], Said | None]
    """Finds the error in the lines of an exception's text; None: it is not of this framework's kind."""
    lost_peer: Callable[[BaseException, str], bool]
    """Whether an exception, with its text, only says that another rank has ended."""
    has_lint: bool = False
    """Whether `headrace lint` reads its scripts."""
    installer: Installer | None = None
    recipe: str = ""
    """The folder with the recipe of what is installed, in a checkout; empty: nothing is."""
    process_environ: Callable[[Mapping[str, str]], dict[str, str]] = _no_environ
    """Variables of every Python child, from the host's environment."""
    has_sockets_in_tmpdir: bool = False
    """Whether its processes hand data over by sockets in TMPDIR, whose path must then be short."""
    shows_batches: bool = False
    """Whether ranks show that they take batches before their first step."""
    trains_in_threads: bool = False
    """Whether a lost peer in another thread than the main one ends the rank."""
    noise: str = ""
    """A regular expression of log lines that say nothing."""
    stall_words: StallWords | None = None
    advice: Callable[[BaseException, str], str] = _no_advice
    """What to do about an exception whose text, the second argument, does not say it."""
    before_script: Callable[[MutableMapping[str, str]], None] = _nothing_before
    """Called on each rank, which may change its environment."""
    after_script: Callable[[], None] = _nothing
    """Called when the script is over, before its exit handlers."""
    before_leaving: Callable[[], None] = _nothing
    """Called after the exit handlers."""
    leave: Callable[[], None] = _nothing
    """Ends MPI, where the framework has started it."""
