"""Whether two processes have made the same dataset: what each of its attributes is made of, in a few characters.

Numbers, texts, arrays, tables (`fingerprint_tables`), containers and functions with what they hold, objects of the
script's own classes, and datasets within, as `Subset` and `ConcatDataset` have them. Of long ones some thousand places
are looked at. Of other objects, an open file or another library's, only the type counts. Folders may have other names
elsewhere: of an attribute that names one only small numbers in its last part count, which may be a rank's, and of other
paths the last two parts. Of real numbers the last digits may differ (`roughly`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from headrace.torch.code_reads import from_its_class, names_read
from headrace.torch.dataset_code import held_by, is_a_librarys_own, is_settings
from headrace.torch.fingerprint_look import Look
from headrace.torch.fingerprint_walk import DEEPEST, Walk
from headrace.torch.roughly import joined

MOST_NAMES = 160
"""Attributes that are told apart."""
WHOLE = "itself"
OPAQUE = "?"
"""The prefix for an object of which only the type counts."""
_NUMBERED = re.compile(r"(?:(?<![a-z0-9])|rank|shard|part|split|fold)\d{1,2}(?![a-z0-9])", re.IGNORECASE)
"""In the name of a file, what may be a rank's number: `train_0.h5`."""
_RANKS = re.compile(r"rank_?\d{1,2}(?!\d)", re.IGNORECASE)
"""In that of a folder, which may be a rank's cache as well."""
_VALUES = (dict, list, set, tuple, str, int, float)
"""Subclasses of these are told whole."""
Made = Mapping[str, str]


def fingerprint(dataset: Any, exact: bool = False, settled: bool = False, late: bool = False) -> dict[str, str]:
    """By attribute, dotted for datasets within datasets; differs where the datasets do, as far as they tell.

    Args:
        exact: for one process at two times: folders and devices count, what the dataset itself writes does not.
        settled: what the dataset itself writes does not count.
        late: nor what code may write that makes samples, among the script's globals.
    """
    found: dict[str, str] = {}
    look = Look(exact, exact or settled, isinstance(dataset, IterableDataset), names_read(dataset), late=late)
    _name_all(found, dataset, "", look)
    if len(found) > MOST_NAMES:
        names = sorted(found)[MOST_NAMES:]
        found["others"] = joined({name: found.pop(name) for name in names})
    return found


def told(value: Any, dataset: Any) -> str:
    """A value that samples of this dataset are made of, as `fingerprint` tells its attributes."""
    return _told(value, Look(False, True, isinstance(dataset, IterableDataset), names_read(dataset)))


def _name_all(found: dict[str, str], value: Any, path: str, look: Look, depth: int = 0) -> None:
    of_its_own = depth == 0 and hasattr(value, "__dict__") and not callable(value) and not isinstance(value, _VALUES)
    named = isinstance(value, Dataset) or of_its_own
    if not named or depth > DEEPEST:
        found[path or WHOLE] = _told(value, look)
        return
    found[f"{path}.type" if path else "type"] = type(value).__qualname__
    left_out = look.written(value)
    for name, attribute in sorted({**from_its_class(value, look.exact, look.late), **held_by(value)}.items()):
        dotted = f"{path}.{name}" if path else name
        if isinstance(attribute, Dataset):
            inner = dataclasses.replace(look, above=left_out)
            _name_all(found, attribute, dotted, inner, depth + 1)
            look.left, look.bytes_left = inner.left, inner.bytes_left
        elif name not in left_out and not is_a_librarys_own(type(value), name):
            for of_it, each in _settings_within(dotted, attribute, look).items():
                found[of_it] = _told(each, look)


def _settings_within(path: str, value: Any, look: Look) -> dict[str, Any]:
    """Each setting of an object that only holds settings, by its name; else the value itself."""
    if not is_settings(value):
        return {path: value}
    return {f"{path}.{name}": each for name, each in look.counts(held_by(value), False).items()}


def _told(value: Any, look: Look) -> str:
    if isinstance(value, (str, os.PathLike)) and os.path.isabs(value) and not look.exact:
        name = os.path.basename(value)
        of_file = bool(os.path.splitext(name)[1]) and not name.startswith("tmp")
        return " ".join(["a path", *(_NUMBERED if of_file else _RANKS).findall(name)])
    own = look.of_attribute()
    walk = Walk(own)
    walk.add(value, 0)
    look.after(own)
    return (OPAQUE if walk.opaque else "") + walk.told()
