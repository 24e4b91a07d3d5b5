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
SMALLEST, SMALLEST_ALONE = 1e-3, 0.02
"""Of the median of an array, and of a single number: what is smaller may differ by more than that share of itself. A
mean of centred numbers is 0 but for rounding."""
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
        parts = (value.real, value.imag) if isinstance(value, (complex, np.complexfloating)) else (value,)
        self._scalars += map(float, parts)

    def add(self, values: NDArray[Any]) -> None:
        """Real or complex ones; masked ones count as none."""
        self._take_scalars()
        if np.iscomplexobj(values):
            values = np.stack([values.real, values.imag], axis=-1)
        is_double = values.dtype == np.float64
        flat = np.ma.filled(values.reshape(-1).astype(np.float64), np.nan)
        sizes = np.abs(flat[np.isfinite(flat) & (flat != 0)])
        many = flat.size >= MANY and sizes.size > 0
        if many and is_double and sizes.max() >= _WHOLE_FROM and (np.trunc(flat) == flat).all():
            self._must += flat.tobytes()
        else:
            self._add(flat, SMALLEST * float(np.median(sizes)) if many else SMALLEST_ALONE)

    def _add(self, flat: NDArray[np.float64], smallest: float) -> None:
        finite = np.isfinite(flat)
        if not finite.all():
            self._must += np.packbits(finite).tobytes() + flat[~finite].tobytes()
            flat = np.where(finite, flat, 0.0)
        with np.errstate(over="ignore"):
            logs = np.log1p(np.minimum(np.abs(flat) / smallest, 1e300)) * np.sign(flat)
        self._parts.append(np.append(logs, np.log(smallest)))

    def _take_scalars(self) -> None:
        if self._scalars:
            self._add(np.array(self._scalars), SMALLEST_ALONE)
            self._scalars = []

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
