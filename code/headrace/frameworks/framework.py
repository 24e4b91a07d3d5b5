"""The `Framework` type: data and a few functions that describe a framework to launcher, ranks and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Said(NamedTuple):
    """The message in an exception's text, without a traceback and other text that a framework adds."""

    lines: Sequence[str]
    names_its_type: bool = False
    """True if `lines` begin with an error's type. If False, the type of the raised exception is put before them."""


@dataclass(frozen=True)
class RankFacts:
    """Facts from which a framework makes the environment variables of ranks."""

    world_size: int
    leader_address: str
    stall_timeout_s: float
    environ: Mapping[str, str]
    """The host's own environment."""


@dataclass(frozen=True)
class StallWords:
    """Form of a library's stall warnings. `reducer` names the library (Horovod). `complaint` matches a warning."""

    reducer: str
    complaint: re.Pattern[str]
    missing_rank: re.Pattern[str]
    """Pattern of a line on a missing rank. Group `rank` is that rank; `first` is the first tensor that waits for it."""


@dataclass(frozen=True)
class Installer:
    """A package that a host installs before its ranks start."""

    what: str
    module: str
    """Module that is run as `python -m MODULE SOURCE_DIR`."""
    is_needed: Callable[[Path, Mapping[str, str]], bool]
    """Returns whether to install. Takes the source dir and the host's environment variables."""


@dataclass(frozen=True)
class Framework:
    """Description of a framework: all that other packages of headrace know about it."""

    name: str
    """The value of --framework."""
    title: str
    training_script: str
    """Name of the script that a job runs by default, and that a new project starts with."""
    image_version: str
    """The version of AWS's training image that jobs use."""
    modules: tuple[str, ...]
    """Modules that must be installed for a job on this machine."""
    how_to_install: str
    data_service: str
    """Module of `headrace.host.services` with the framework's data service, which makes batches."""
    without_sharing: str
    """Argument that keeps ranks from dividing a dataset. A script needs it if each host has different files."""
    measured_by: str
    """Class that a script uses to have its steps measured."""
    rank_environ: Callable[[RankFacts], dict[str, str]]
    """Returns the environment variables to set for mpirun and the ranks."""
    what_is_said: Callable[[Sequence[str]], Said | None]
    """Finds the message in the lines of an exception's text. Returns None for a text of unknown form."""
    lost_peer: Callable[[BaseException, str], bool]
    """Returns whether an exception only means that another rank has ended. Takes the exception and its text."""
    has_lint: bool = False
    """True if `headrace lint` can check scripts of this framework."""
    installer: Installer | None = None
    recipe: str = ""
    """Folder in a checkout with the recipe for the `installer`; empty if there is no installer."""
    process_environ: Callable[[Mapping[str, str]], dict[str, str]] = lambda _: {}
    """Returns the environment variables to set for each Python process of a host. Takes the host's environment."""
    has_sockets_in_tmpdir: bool = False
    """True if the framework's processes use sockets in TMPDIR. The path of TMPDIR must then be short."""
    shows_batches: bool = False
    """True if rank N touches `rankN` in the signal folder at its first batch; False: only at its first step."""
    trains_in_threads: bool = False
    """True if a rank must end when any of its threads, not only the main one, loses the connection to another rank."""
    noise: str = ""
    """Regular expression for log lines that hold no information; empty: there are none."""
    stall_words: StallWords | None = None
    advice: Callable[[BaseException, str], str] = lambda _, __: ""
    """Returns advice on an exception, or an empty text. Takes the exception and its text."""
    before_script: Callable[[MutableMapping[str, str]], None] = lambda _: None
    """Called on each rank before the script. Takes the rank's environment variables, and may change them."""
    after_script: Callable[[], None] = lambda: None
    """Called when the script is over, before its exit handlers."""
    leave: Callable[[], None] = lambda: None
    """Called last, after the script's exit handlers; ends MPI if the framework has started it."""
