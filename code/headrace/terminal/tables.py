"""Tables that look the same on a terminal and in a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

RULE = "\u2500"
"""Character that Rich draws below the head. Some locales lack it."""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, each column as wide as its widest cell; for logs, and where there is no Rich."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class Table:
    """A table with a head. No cell is cut or wrapped."""

    def __init__(self, *head: str) -> None:
        from rich import box
        from rich.table import Table as RichTable

        self._table = RichTable(*head, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)

    def add(self, *cells: str) -> None:
        """Add a row."""
        from rich.text import Text

        self._table.add_row(*(Text(cell) for cell in cells))  # Text does not read brackets as markup

    def text(self) -> str:
        """Return the table as text without colors."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=10_000, color_system=None)
        console.print(self._table)
        assert isinstance(console.file, io.StringIO)
        text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
        return text if _can_be_shown(RULE) else text.replace(RULE, "-")


def _can_be_shown(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True
