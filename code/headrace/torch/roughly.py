"""Numbers that two hosts have computed, compared but for their last digits.

A mean, or a normalised table, comes out otherwise in the last bits where there are more processors, or those of another
make: sums are taken in another order. So two sums over such numbers are told, and compared within a tolerance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-5
"""Of the sum of the numbers' sizes. Sums of float32 in another order differ by some 1e-6, other datasets' by 1e-2."""
_BETWEEN = "~"


class Reals:
    """Sums over a sequence of real numbers: of their sizes, and weighted by their places, so that order counts."""

    def __init__(self) -> None:
        self.count = 0
        self._sizes = self._weighted = 0.0

    def add(self, values: NDArray[Any]) -> bytes:
        """Real or complex ones; returns what is compared exactly: which are finite, and what the others are."""
        flat = values.reshape(-1)
        if np.iscomplexobj(flat):
            flat = np.stack([flat.real, flat.imag], axis=1).reshape(-1)
        flat = flat.astype(np.float64)
        finite = np.isfinite(flat)
        others = b"" if finite.all() else np.packbits(finite).tobytes() + repr(flat[~finite].tolist()).encode()
        flat = np.where(finite, flat, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            self._sizes += float(np.abs(flat).sum())
            self._weighted += float((flat * np.cos(np.arange(self.count, self.count + flat.size))).sum())
        self.count += flat.size
        return others

    def __str__(self) -> str:
        return f"{_BETWEEN}{self._sizes!r}{_BETWEEN}{self._weighted!r}" if self.count else ""


def same(one: Any, other: Any) -> bool:
    """Whether two texts are the same, but for a little where each ends with what `Reals` tells."""
    if one == other:
        return True
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    (exact, *reals), (others_exact, *others_reals) = one.split(_BETWEEN), other.split(_BETWEEN)
    if exact != others_exact or len(reals) != 2 or len(others_reals) != 2:
        return False
    try:
        sizes, weighted = ((float(each), float(others)) for each, others in zip(reals, others_reals, strict=True))
    except ValueError:
        return False
    limit = TOLERANCE * max(sizes)
    return all(repr(each) == repr(others) or abs(each - others) <= limit for each, others in (sizes, weighted))


def joined(texts: Mapping[str, str]) -> str:
    """One text for many, which `same` compares as it would compare each."""
    digest, sums = hashlib.sha256(), np.zeros(2)
    for place, (name, text) in enumerate(texts.items()):
        exact, *reals = text.split(_BETWEEN)
        digest.update(f"{name}={exact}\0".encode(errors="surrogatepass"))
        sums += np.array([float(each) for each in reals] or [0.0, 0.0]) * [1.0, np.cos(place)]
    return _BETWEEN.join([digest.hexdigest()[:16], *(repr(float(each)) for each in sums)])
