"""The `Framework` type: data and a few functions that describe a framework to launcher, ranks and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Said(NamedTuple):
    """The message of an error, without the lines around it."""

    lines: Sequence[str]
    names_its_type: bool = False
    """True if the lines begin with the type of the error that was raised first."""


@dataclass(frozen=True)
class RankFacts:
    """Facts from which the environment of ranks is made."""

    world_size: int
    leader_address: str
    stall_timeout_s: float
    environ: Mapping[str, str]
    """The host's own environment."""


@dataclass(frozen=True)
class StallWords:
    """Patterns of a reducer's log lines on ranks that it waits for: some lines, then one for each missing rank."""

    reducer: str
    complaint: re.Pattern[str]
    missing_rank: re.Pattern[str]
    """Pattern with the groups `rank` and `first`, the first tensor that others wait for."""


@dataclass(frozen=True)
class Installer:
    """An installation on a host before its ranks start."""

    what: str
    module: str
    """Module that is run as `python -m MODULE SOURCE_DIR`."""
    is_needed: Callable[[Path, Mapping[str, str]], bool]
    """Tells from the source dir and the host's environment whether to install."""


@dataclass(frozen=True)
class Framework:
    """All that headrace knows of a framework outside of the framework's own package."""

    name: str
    """The value of --framework."""
    title: str
    training_script: str
    """Script that a job runs unless a flag says otherwise, and that a new project starts from."""
    image_version: str
    """The version of AWS's training image that jobs use."""
    modules: tuple[str, ...]
    """Modules that a job on this machine imports."""
    how_to_install: str
    data_service: str
    """Module of `headrace.host.services` that makes its batches."""
    without_sharing: str
    """Argument with which a script says that each host reads all of its own files."""
    measured_by: str
    """Name that a script uses so that its steps are measured."""
    rank_environ: Callable[[RankFacts], dict[str, str]]
    """Returns environment variables of mpirun and the ranks."""
    what_is_said: Callable[[Sequence[str]], Said | None]
    """Finds the error in the lines of an exception's text; returns None if it is not of this framework's kind."""
    lost_peer: Callable[[BaseException, str], bool]
    """Tells whether an exception, given with its text, only says that another rank has ended."""
    has_lint: bool = False
    """True if `headrace lint` reads its scripts."""
    installer: Installer | None = None
    recipe: str = ""
    """Folder of the installation recipe in a checkout; empty: nothing is installed."""
    process_environ: Callable[[Mapping[str, str]], dict[str, str]] = lambda _: {}
    """Returns environment variables of every Python child, from the host's environment."""
    has_sockets_in_tmpdir: bool = False
    """True if its processes hand data over by sockets in TMPDIR, whose path must then be short."""
    shows_batches: bool = False
    """True if ranks show that they take batches before their first step."""
    trains_in_threads: bool = False
    """True if the rank must end when a thread other than the main one loses its connection to a peer."""
    noise: str = ""
    """Regular expression of log lines without information."""
    stall_words: StallWords | None = None
    advice: Callable[[BaseException, str], str] = lambda _, __: ""
    """Returns what to do about an exception whose text, the second argument, does not say so."""
    before_script: Callable[[MutableMapping[str, str]], None] = lambda _: None
    """Called on each rank before the script; it may change the environment."""
    after_script: Callable[[], None] = lambda: None
    """Called when the script is over, before its exit handlers."""
    before_leaving: Callable[[], None] = lambda: None
    """Called after the script's exit handlers."""
    leave: Callable[[], None] = lambda: None
    """Ends MPI, where the framework has started it."""
