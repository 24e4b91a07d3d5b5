"""Tables that look the same on a terminal and in a file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from headrace.terminal.display import can_show

RULE = "\u2500"
"""Character of the line below a table's head. Some locales lack it."""


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Return the rows as lines, each column as wide as its widest cell. A row may have fewer cells than others."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return [gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text. The first row is its head, with a line below."""
    head, *body = aligned(rows, gap="   ")
    rule = RULE if can_show(RULE, sys.stdout) else "-"
    return "\n".join([head, rule * max(map(len, (head, *body))), *body])
