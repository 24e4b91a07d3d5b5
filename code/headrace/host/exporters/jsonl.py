"""Export the leader's figures to `metrics.jsonl`; rank 0 writes steps and epochs to the same file itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headrace.host.exporters.exporter import Record, Write


def to_file(path: Path) -> Write:
    """Return a function that appends records to this file, in one write each, so that rank 0's lines stay whole."""

    def write(records: Sequence[Record]) -> None:
        # Rank 0 writes the steps, and the summary has its own file.
        lines = [json.dumps(record) + "\n" for record in records if "step" not in record and "summary" not in record]
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))

    return write
