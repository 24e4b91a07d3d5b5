"""What a script has changed of a loader's dataset or `collate_fn` since its first batch; data hosts do not see it."""

from __future__ import annotations

from typing import Any

from headrace.errors import InputError
from headrace.torch.code_reads import read_by
from headrace.torch.fingerprint import GLOBAL, OPAQUE, WHOLE, Made, fingerprint
from headrace.torch.noted import noted
from headrace.torch.registry import WITHOUT_DATA_HOSTS, equal

COLLATE = "collate_fn."
"""The prefix for what is no dataset's."""


def changes(before: Made, now: Made) -> list[str]:
    """The attributes that hold other values now; what was opened since is none. Both prints are exact."""
    return [
        name
        for name in sorted(set(before) & set(now))
        if before[name] != now[name] and (before[name].startswith(OPAQUE) or not now[name].startswith(OPAQUE))
    ]


def as_it_is(loader: Any) -> dict[str, str]:
    """What makes its samples and batches, exactly, for `refuse_changes`."""
    return _made_by(loader, exact=True)


def told_to_ranks(loader: Any) -> dict[str, dict[str, str]]:
    """What of its samples and batches has changed on this rank since the first batch, for `alike.differing`."""
    before, now = loader.at_first_batch, as_it_is(loader)
    changed = changes(before, now) + [name for name in sorted(set(now) - set(before)) if GLOBAL in name]
    of_no_sample = noted(changed, loader.dataset, loader.collate_fn, loader.worker_init_fn) if changed else []
    loosely = _made_by(loader, settled=True) if len(changed) > len(of_no_sample) else {}
    found: dict[str, dict[str, str]] = {"made_of": {}, "collate_fn": {}}
    for name in set(changed) & set(loosely) - set(of_no_sample):
        of_collate = name.startswith(COLLATE)
        found["collate_fn" if of_collate else "made_of"][name.removeprefix(COLLATE)] = loosely[name]
    return found


def refuse_changes(loader: Any, before: dict[str, str]) -> list[str]:
    """Raises `InputError` where feed servers have another dataset than this script, which has changed its own.

    Args:
        before: `as_it_is` when the first batch was asked for; what is only noted on the dataset is taken out.

    Returns:
        The attributes that have changed since, and that no sample is made of.
    """
    same_function = equal(loader.own_collate_fn, loader.collate_fn)  # a bound method is another object each time
    changed = ["collate_fn"] * (not same_function) + changes(before, as_it_is(loader))
    of_no_sample = noted(changed, loader.dataset, loader.collate_fn, loader.worker_init_fn) if changed else []
    for name in of_no_sample:
        del before[name]
        changed.remove(name)
    if changed:
        of_collate = all(name.startswith("collate_fn") for name in changed)
        what, there = ("collate_fn", "") if of_collate else (
            "dataset", "in a method set_epoch(epoch) of the dataset, which is called wherever samples are made; or "
        )  # fmt: skip
        raise InputError(
            f"the {what} of loader {loader.number + 1} has changed since the first batch ({', '.join(changed[:5])}), "
            f"and data hosts do not see that: change it before, or {there}{WITHOUT_DATA_HOSTS}"
        )
    return of_no_sample


def _made_by(loader: Any, **how: bool) -> dict[str, str]:
    """By attribute, as `fingerprint` tells it."""
    read = read_by(loader.collate_fn).items()
    of_collate = fingerprint(loader.collate_fn, **how).items()
    data = {name.removeprefix(GLOBAL): told for name, told in of_collate if name.startswith(GLOBAL)}
    numbers = {name: fingerprint(each, **how)[WHOLE] for name, each in read}
    made = {f"{COLLATE}{name}": told for name, told in {**data, **numbers}.items()}
    return {**fingerprint(loader.dataset, **how), **made}
