"""Compute runs' prices from the table of instance types. A simulated host has the price of the type given by `--as`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.topology import DATA_GROUP, DNN_GROUP
from headrace.errors import InputError
from headrace.job.instances import InstanceTable, InstanceType


@dataclass(frozen=True)
class Price:
    """Price of a run's hosts in dollars."""

    usd_per_hour: float
    usd_per_epoch: float | None
    """Dollars for the steps of an epoch; None if no epoch was finished."""
    usd_per_million: float | None
    """Dollars for a million samples of training; None if no step was made."""


def parse_stands_for(texts: Sequence[str], table: InstanceTable) -> dict[str, InstanceType]:
    """Parse the values `[GROUP=]TYPE` of --as. Return a dict from group to instance type. GROUP defaults to dnn_group.

    Raises:
        InputError: there is no such group, or the table lacks the type.
    """
    found = {}
    for text in texts:
        group, _, name = text.rpartition("=")
        group = group or DNN_GROUP
        if group not in (DATA_GROUP, DNN_GROUP):
            raise InputError(f"--as {text!r} is not of the form [GROUP=]TYPE (GROUP: {DATA_GROUP} or {DNN_GROUP})")
        kind = table.get(name)
        if kind is None:
            raise InputError(f"--as {text}: the table of instance types lacks {name!r}; add it with --prices")
        found[group] = kind
    return found


def host_type(
    host: Mapping[str, Any], simulated: bool, table: InstanceTable, stands_for: Mapping[str, InstanceType]
) -> InstanceType | None:
    """Return a host's instance type; for a simulated host, the type given by `--as`. None: the type is not known."""
    group = DATA_GROUP if host["group"] == DATA_GROUP else DNN_GROUP
    return stands_for.get(group) if simulated else table.get(host["instance_type"])


def price(summary: Mapping[str, Any], table: InstanceTable, stands_for: Mapping[str, InstanceType]) -> Price | None:
    """Return the price of a run's hosts; None if a host's price is not known."""
    simulated = bool(summary.get("simulated"))
    kinds = [host_type(host, simulated, table, stands_for) for host in summary["hosts"].values()]
    known = [kind.usd_per_hour for kind in kinds if kind and kind.usd_per_hour is not None]
    if len(known) < len(kinds):
        return None
    hourly, rate = sum(known), summary["samples_per_s"]
    epoch_s = summary["steps_per_epoch"] * summary["step_time_ms"]["mean"] / 1000
    return Price(hourly, hourly / 3600 * epoch_s if epoch_s else None, hourly / 3600 / rate * 1e6 if rate else None)
