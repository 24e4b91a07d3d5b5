"""Processors and prices of instance types, from the dated table instances.csv. Users may replace rows and prices.

The data is used before a job (ranks per host, cost limits) and after it (cost, advice).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import InputError

TABLE = Path(__file__).with_name("instances.csv")
COLUMNS = ("instance_type", "vcpus", "gpus", "gpu", "memory_gib", "network_gbps", "usd_per_hour")


@dataclass(frozen=True)
class InstanceType:
    """An instance type's processors and network, and its on-demand training price."""

    name: str
    vcpus: int
    gpus: int
    gpu: str
    network_gbps: float
    usd_per_hour: float | None
    """Training price in dollars an hour; None if not known."""

    def __post_init__(self) -> None:
        usd = self.usd_per_hour or 0.0
        if self.vcpus < 1 or self.gpus < 0 or not 0 < self.network_gbps < math.inf or not 0 <= usd < math.inf:
            raise ValueError("vcpus and network_gbps must be numbers above 0, gpus and usd_per_hour 0 or more")


@dataclass(frozen=True)
class InstanceTable:
    """Instance types by name, and the date of their prices."""

    types: Mapping[str, InstanceType]
    as_of: str
    dated: str = ""
    """Origin and date of the prices, as text."""

    def get(self, name: str) -> InstanceType | None:
        """Return the type, or None if the table lacks it."""
        return self.types.get(name)

    def ranks_on(self, name: str, given: int | None) -> int:
        """Return the number of ranks on a dnn host of this type: `given`, else one for each GPU.

        Raises:
            InputError: `given` is more than the GPUs, or it is None and the table lacks the type.
        """
        kind = self.get(name)
        gpus = kind.gpus if kind else 0
        if given is None:
            if kind is None:
                raise InputError(f"the number of GPUs of {name} is not known; give --processes_per_host")
            return max(gpus, 1)
        if given > gpus > 0:
            raise InputError(
                f"--processes_per_host {given} is too many for {name} (GPUs: {gpus}); give {gpus}, or leave it out"
            )
        return given

    def with_prices(self, texts: Iterable[str]) -> InstanceTable:
        """Return a copy of this table with other prices. Each text is `TYPE=USD_PER_HOUR`.

        Raises:
            InputError: a text is malformed, or names a type that the table lacks.
        """
        types, given = dict(self.types), list(texts)
        for text in given:
            name, _, price = text.partition("=")
            try:
                usd = float(price)
                types[name] = replace(types[name], usd_per_hour=usd)
            except KeyError:
                raise InputError(f"--price: the table has no {name!r}; give a table with --prices") from None
            except ValueError:
                raise InputError(
                    f"--price {text!r} is not of the form TYPE=USD_PER_HOUR, such as ml.c5.18xlarge=3.67"
                ) from None
        return replace(self, types=types, dated=self.dated + (f", but --price {', '.join(given)}" if given else ""))


def read_instances(own: Path | None = None) -> InstanceTable:
    """Read the built-in table. Rows of the user's table `own` are added. They replace built-in rows of the same type.

    Raises:
        InputError: a table cannot be read, or a row is wrong.
    """
    table = _read(TABLE)
    dated = f"on-demand prices in us-east-1 as of {table.as_of}"
    if own is None:
        return replace(table, dated=dated)
    mine = _read(own)
    dated += f", but those in {own.name}" + (f" as of {mine.as_of}" if mine.as_of else "")
    return InstanceTable({**table.types, **mine.types}, mine.as_of or table.as_of, dated)


def _read(path: Path) -> InstanceTable:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the instance types in {path}: {error}") from error
    dates = [match[1] for line in lines if (match := re.match(r"#\s*as of:\s*(\S+)", line))]
    reader = csv.DictReader(line for line in lines if line.strip() and not line.startswith("#"))
    try:
        columns, rows = tuple(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV table: {error}") from error
    if columns != COLUMNS:
        raise InputError(f"{path}: expected the columns {','.join(COLUMNS)}, found {','.join(columns)}")
    types: dict[str, InstanceType] = {}
    for row in rows:
        name = (row["instance_type"] or "").strip()
        if name in types:
            raise InputError(f"{path}: {name!r} has two rows; keep one")
        try:
            types[name] = InstanceType(
                name,
                int(row["vcpus"]),
                int(row["gpus"]),
                row["gpu"].strip(),
                float(row["network_gbps"]),
                float(row["usd_per_hour"]) if row["usd_per_hour"].strip() else None,
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: the row of {name!r} is wrong: {error}") from error
    return InstanceTable(types, dates[0] if dates else "")
