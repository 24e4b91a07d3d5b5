"""Names of streams: workers hand out one stream for a name, so no two datasets of a script may have the same."""

from __future__ import annotations

import collections

_given: collections.Counter[str] = collections.Counter()


def own_name(name: str) -> str:
    """This name where no dataset of this process has it yet, else with a number; the same on all ranks.

    All ranks distribute the same datasets in the same order.
    """
    _given[name] += 1
    if _given[name] == 1:
        return name
    return own_name(f"{name}-{_given[name]}")
