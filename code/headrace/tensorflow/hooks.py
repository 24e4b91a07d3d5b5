"""Something that is called whenever a method of a library's class is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def around(
    of: type, name: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
) -> None:
    """From now on these are called too; `after` is not called where the method raises."""
    original = getattr(of, name)

    @functools.wraps(original)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before:
            before()
        result = original(self, *args, **kwargs)
        if after:
            after()
        return result

    setattr(of, name, both)
