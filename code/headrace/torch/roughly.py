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
SMALLEST = 1e-4
"""Numbers below differ by less than a share of themselves: a mean of centred numbers is 0 but for rounding."""
_WHOLE_FROM, _WHOLE_TO = 1e4, float(1 << 53)
"""Whole numbers of this size are times, identities or counts, and no means: they must be the same."""
_BETWEEN = "~"


class Reals:
    """Real numbers in their order."""

    def __init__(self) -> None:
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
        self._parts.append(values.reshape(-1).astype(np.float64))

    def _take_scalars(self) -> None:
        if self._scalars:
            self._parts.append(np.array(self._scalars))
            self._scalars = []

    def told(self) -> tuple[bytes, str]:
        """What must be the same, and what `same` compares; empty where there are none."""
        self._take_scalars()
        if not self._parts:
            return b"", ""
        all_of = np.concatenate(self._parts)
        sizes = np.abs(all_of)
        exact = ~np.isfinite(all_of)
        with np.errstate(invalid="ignore"):
            exact |= (sizes >= _WHOLE_FROM) & (sizes < _WHOLE_TO) & (np.trunc(all_of) == all_of)
        logs = np.log1p(np.where(exact, 0.0, np.minimum(sizes, 1e300)) / SMALLEST) * np.sign(np.where(exact, 0, all_of))
        sums = float(logs.sum()), float((logs * np.cos(np.arange(logs.size))).sum())
        must = np.packbits(exact).tobytes() + all_of[exact].tobytes() if exact.any() else b""
        return must, _BETWEEN.join(["", str(logs.size), *map(repr, sums)])


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
