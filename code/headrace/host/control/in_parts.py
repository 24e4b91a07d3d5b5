"""A record that may be large, as text, one part with each answer of a host: no answer exceeds the channel's limit."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

PART_CHARS = 24_000
"""Of the compressed record in base 64; a tenth of what a message may hold."""


class InParts:
    """A host's side: cuts what it was last given. A small record is one part, and always the latest."""

    def __init__(self) -> None:
        self._record = 0
        self._parts = [""]
        self._place = 0

    def give(self, record: Any) -> None:
        """Take this record, unless parts of an earlier one are still to be sent."""
        if self._place == 0:
            text = base64.b64encode(zlib.compress(json.dumps(record).encode(), 1)).decode()
            self._record += 1
            self._parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]

    def part(self) -> dict[str, Any]:
        """The part whose turn it is."""
        return {
            "record": self._record,
            "place": self._place,
            "of": len(self._parts),
            "text": self._parts[self._place],
        }

    def sent(self) -> None:
        """The part has been sent; the next one follows."""
        self._place = (self._place + 1) % len(self._parts)


class Joined:
    """The leader's side: puts a record together. What another host sent may be anything."""

    def __init__(self) -> None:
        self._record: Any = None
        self._texts: list[str] = []
        self._whole: Any = {}

    def take(self, part: Any) -> Any:
        """The last record of which all parts have come. A part that got lost costs the record that it belongs to."""
        try:
            if part["place"] == 0:
                self._record, self._texts = part["record"], []
            if part["record"] == self._record and part["place"] == len(self._texts):
                self._texts.append(part["text"])
                if len(self._texts) == part["of"]:
                    self._whole = json.loads(zlib.decompress(base64.b64decode("".join(self._texts))))
        except (LookupError, TypeError, ValueError, RecursionError, zlib.error):
            self._texts = []
        return self._whole
