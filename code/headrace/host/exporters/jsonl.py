"""`metrics.jsonl`: what the leader adds to the lines of rank 0, which writes steps and epochs itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headrace.host.exporters.exporter import Record, Write


def to_file(path: Path) -> Write:
    """Writes to this file; lines at once, so that those of two processes do not mix."""

    def write(records: Sequence[Record]) -> None:
        # Steps are rank 0's, and the summary has a file of its own.
        lines = [json.dumps(record) + "\n" for record in records if "step" not in record and "summary" not in record]
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))

    return write
