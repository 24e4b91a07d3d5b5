"""Numbers that two hosts have computed, compared but for their last digits.

A mean, or a normalised table, comes out otherwise in the last bits where there are more processors, or those of another
make: sums are taken in another order. So sums over such numbers are told, and compared within a tolerance. It is their
logarithms that are summed, so that a large number does not hide what a small one does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-5
"""Of each number, as a share of it. Sums of float32 in another order differ by some 1e-6."""
SMALLEST = 1e-3
"""Of the median of an array, else of 1: what is smaller differs by less than a share of itself. A mean of centred
numbers is 0 but for rounding."""
MANY = 16
"""Numbers that make an array."""
_WHOLE_FROM = 1e4
"""Arrays of whole numbers of double precision, this large, are times or identities: they must be equal."""
_BETWEEN = "~"


class Reals:
    """Real numbers in their order."""

    def __init__(self) -> None:
        self._must = b""
        self._parts: list[NDArray[np.float64]] = []
        self._scalars: list[float] = []

    def add_one(self, value: Any) -> None:
        """A real or complex number of Python's or NumPy's."""
        self._scalars += (
            [float(value.real), float(value.imag)]
            if isinstance(value, (complex, np.complexfloating))
            else [float(value)]
        )

    def add(self, values: NDArray[Any]) -> None:
        """Real or complex ones; masked ones count as none."""
        if np.iscomplexobj(values):
            values = np.stack([values.real, values.imag], axis=-1)
        if isinstance(values, np.ma.MaskedArray):
            values = np.ma.filled(values.astype(np.float64), np.nan)
        self._take_scalars()
        flat = values.reshape(-1).astype(np.float64)
        sizes = np.abs(flat)
        whole = values.dtype == np.float64 and flat.size >= MANY and bool((np.trunc(flat) == flat).all())
        if whole and sizes.max() >= _WHOLE_FROM:
            self._must += flat.tobytes()
        else:
            self._add(flat, sizes)

    def _add(self, flat: NDArray[np.float64], sizes: NDArray[np.float64]) -> None:
        finite = np.isfinite(flat)
        if not finite.all():
            self._must += np.packbits(finite).tobytes() + flat[~finite].tobytes()
            flat, sizes = np.where(finite, flat, 0.0), np.where(finite, sizes, 0.0)
        some = sizes[sizes > 0] if flat.size >= MANY else sizes[:0]
        scale = float(np.median(some)) if some.size else 1.0
        logs = np.log1p(np.minimum(sizes / scale, 1e300) / SMALLEST) * np.sign(flat)
        self._parts.append(np.append(logs, np.log(scale)))

    def _take_scalars(self) -> None:
        if self._scalars:
            flat = np.array(self._scalars)
            self._scalars = []
            for place in range(0, flat.size, MANY - 1):  # each by itself: a list may hold what it likes
                self._add(flat[place : place + MANY - 1], np.abs(flat[place : place + MANY - 1]))

    def told(self) -> tuple[bytes, str]:
        """What must be the same, and what `same` compares; empty where there are none."""
        self._take_scalars()
        if not self._parts:
            return self._must, ""
        logs = np.concatenate(self._parts)
        sums = float(logs.sum()), float((logs * np.cos(np.arange(logs.size))).sum())
        return self._must, _BETWEEN.join(["", str(logs.size), *map(repr, sums)])


def same(one: Any, other: Any) -> bool:
    """Whether two texts are the same, but for a little where each ends with what `Reals` tells."""
    if one == other:
        return True
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    (exact, *reals), (others_exact, *others_reals) = one.split(_BETWEEN), other.split(_BETWEEN)
    try:
        count, *sums = map(float, reals)
        others_count, *others_sums = map(float, others_reals)
        pairs = list(zip(sums, others_sums, strict=True))
    except ValueError:
        return False
    return (exact, count) == (others_exact, others_count) and all(abs(a - b) <= TOLERANCE * count for a, b in pairs)


def joined(texts: Mapping[str, str]) -> str:
    """One text for many, which `same` compares as it would compare each."""
    digest, sums = hashlib.sha256(), np.zeros(3)
    for place, (name, text) in enumerate(texts.items()):
        exact, *reals = text.split(_BETWEEN)
        digest.update(f"{name}={exact}\0".encode(errors="surrogatepass"))
        sums += np.array([float(each) for each in reals] or [0.0] * 3) * [1.0, 1.0, np.cos(place)]
    return _BETWEEN.join([digest.hexdigest()[:16], *(repr(float(each)) for each in sums)])
