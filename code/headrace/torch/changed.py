"""What a script has changed of a loader's dataset or `collate_fn` since its first batch; data hosts do not see it."""

from __future__ import annotations

from typing import Any

from headrace.errors import InputError
from headrace.torch.code_reads import read_by
from headrace.torch.fingerprint import OPAQUE, WHOLE, Made, fingerprint
from headrace.torch.noted import noted
from headrace.torch.registry import WITHOUT_DATA_HOSTS, equal


def changes(before: Made, now: Made) -> list[str]:
    """The attributes that hold other values now; what was opened since is none. Both prints are exact."""
    return [
        name
        for name in sorted(set(before) & set(now))
        if before[name] != now[name] and (before[name].startswith(OPAQUE) or not now[name].startswith(OPAQUE))
    ]


def as_it_is(loader: Any) -> dict[str, str]:
    """What makes its samples and batches, exactly, for `refuse_changes`."""
    read = read_by(loader.collate_fn).items()
    made = {f"collate_fn.{name}": fingerprint(each, exact=True)[WHOLE] for name, each in read}
    return {**fingerprint(loader.dataset, exact=True), **made}


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
