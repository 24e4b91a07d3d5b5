"""Split a large record into parts; each reply of a host carries one, so no reply exceeds the channel's limit."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

PART_CHARS = 24_000
"""Length of a part, in characters of the compressed record in base64; a tenth of what a message may hold."""


class InParts:
    """The sender's side: splits the latest record. A record of one part never waits for older parts to be sent."""

    def __init__(self) -> None:
        self._record = 0
        self._parts = [""]
        self._place = 0

    def give(self, record: Any) -> None:
        """Split this record, unless parts of an earlier one are still to be sent."""
        if self._place == 0:
            text = base64.b64encode(zlib.compress(json.dumps(record).encode(), 1)).decode()
            self._record += 1
            self._parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]

    def part(self) -> dict[str, Any]:
        """Return the next part to send."""
        return {
            "record": self._record,
            "place": self._place,
            "of": len(self._parts),
            "text": self._parts[self._place],
        }

    def sent(self) -> None:
        """Note that the part has been sent, and go on to the next."""
        self._place = (self._place + 1) % len(self._parts)


class Joined:
    """The leader's side: joins the parts. It accepts any input, because another host sent it."""

    def __init__(self) -> None:
        self._record: Any = None
        self._texts: list[str] = []
        self._whole: Any = {}

    def take(self, part: Any) -> Any:
        """Add a part; return the last complete record. If a part is lost, its record is skipped."""
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
