"""Tables for the terminal, which look the same in a file."""

from __future__ import annotations

import io


class Table:
    """Rows under a head; no cell is ever cut or wrapped."""

    def __init__(self, *head: str) -> None:
        from rich import box
        from rich.table import Table as RichTable

        self._table = RichTable(*head, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)

    def add(self, *cells: str) -> None:
        """One row."""
        from rich.text import Text

        self._table.add_row(*(Text(cell) for cell in cells))  # as it is: brackets are no markup

    def text(self) -> str:
        """The table, without colors."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=10_000, color_system=None)
        console.print(self._table)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
