"""Candidate jobs with different hosts and placements, each with its predicted step time, price and flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.frameworks import DEFAULT
from headrace.job.instances import InstanceType
from headrace.job.spec import LOCAL_PROCESSES_PER_HOST
from headrace.report.measured import NO_LIMIT, Measured, group_of
from headrace.report.predict import PLACEMENTS, Group, Placement, Prediction, predict

NEARLY = 1.02
"""Ratio up to which two predictions count as equal. Smaller differences are within the error of predictions."""


@dataclass(frozen=True)
class Option:
    """One candidate job with its predicted speed and price."""

    placement: Placement
    data_hosts: int
    data_type: str
    """Instance type of the data hosts; empty if there are none, or if the type is not known."""
    prediction: Prediction
    samples_per_s: float
    input_bound_share: float
    hosts: int
    """Number of dnn hosts and data hosts together."""
    usd_per_hour: float | None
    """Dollars an hour for all hosts; None if a price is not known, as for simulated hosts."""

    @property
    def usd_per_million(self) -> float | None:
        """Dollars for a million samples; None if a price is not known."""
        return None if self.usd_per_hour is None else self.usd_per_hour / 3600 / self.samples_per_s * 1e6

    def hours(self, samples: float) -> float:
        """Return the hours needed to train on this number of samples."""
        return samples / self.samples_per_s / 3600

    def cost_usd(self, samples: float) -> float | None:
        """Return the cost in dollars of training on this number of samples; None if a price is not known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours(samples)

    @property
    def cost_per_hour(self) -> float:
        """Cost of an hour, to compare options: in dollars, or as the number of hosts if prices are not known."""
        return self.hosts if self.usd_per_hour is None else self.usd_per_hour

    @property
    def cost_per_sample(self) -> float:
        """Cost of a sample, in no particular unit: use it only to compare options."""
        return self.cost_per_hour / self.samples_per_s

    def flags(self, run: Measured) -> str:
        """Return start_job.py's flags for this job. The user adds the flags of the training script."""
        here = "--no-is_cloud_job " if run.is_simulated else ""
        here += f"--framework {run.framework} " if run.framework != DEFAULT.name else ""
        kind = f" --dnn_instance_type {run.trainer_type_name}" if run.trainer_type_name else ""
        dnn = f"--num_of_dnn_instances {run.trainer.hosts}{kind}{self._ranks(run)}"
        if not self.data_hosts:
            service = " --tf_data_mode service" if run.has_service and not run.has_data_hosts else ""
            return f"{here}--no-is_hetero {dnn}{service}"
        data_type = f" --data_instance_type {self.data_type}" if self.data_type else ""
        workers = " --local_workers off" if self.placement == "data" else ""
        return f"{here}--num_of_data_instances {self.data_hosts}{data_type} {dnn}{workers}"

    @staticmethod
    def _ranks(run: Measured) -> str:
        """Return the flag --processes_per_host, or an empty text if start_job.py's default is right.

        The default is right if the run had the same number of ranks per host. With `--as` it fits the given type.
        """
        own = max(run.trainer_type.gpus, 1) if run.trainer_type else LOCAL_PROCESSES_PER_HOST * run.is_simulated
        as_by_itself = run.stands_for_type or run.ranks_per_host == own
        return "" if as_by_itself else f" --processes_per_host {run.ranks_per_host:g}"


def options(run: Measured, data_types: Sequence[InstanceType], most_hosts: int, like_cpus: float = 0) -> list[Option]:
    """Return every job with 0 to `most_hosts` data hosts of one type. The first has no data hosts.

    Args:
        data_types: candidate types of the data hosts; empty if their type and price are not known.
        like_cpus: CPUs of each data host if `data_types` is empty.
    """
    found = [_option(run, "trainer", Group(0, 0, NO_LIMIT), None)]
    for count in range(1, most_hosts + 1):
        groups: list[tuple[Group, InstanceType | None]] = [(group_of(count, kind), kind) for kind in data_types]
        for group, kind in groups or [(Group(count, like_cpus, NO_LIMIT), None)]:
            found += [_option(run, each, group, kind) for each in PLACEMENTS if each != "trainer"]
    return found


def cheapest(among: Iterable[Option]) -> Option:
    """Return the option with the lowest cost per sample. If several cost about the same, `fastest` chooses one."""
    found = list(among)
    least = min(each.cost_per_sample for each in found)
    return fastest(each for each in found if each.cost_per_sample <= least * NEARLY)


def fastest(among: Iterable[Option]) -> Option:
    """Return the option with the shortest step. If several are about as fast, take the cheapest, then the smallest."""
    found = list(among)
    least = min(each.prediction.step_s for each in found)
    nearly = [each for each in found if each.prediction.step_s <= least * NEARLY]
    return min(nearly, key=lambda each: (each.cost_per_hour, each.hosts))


def worth_showing(among: Iterable[Option]) -> list[Option]:
    """Return the options that no other option beats in both time and cost. Without prices, more hosts cost more."""
    kept: list[Option] = []
    for each in sorted(among, key=lambda each: (each.cost_per_hour, each.hosts, each.prediction.step_s)):
        if all(each.prediction.step_s * NEARLY < other.prediction.step_s for other in kept):
            kept.append(each)
    return kept


def _option(run: Measured, placement: Placement, data: Group, kind: InstanceType | None) -> Option:
    has_service = run.has_service and not run.has_data_hosts
    prediction = predict(run.work, run.trainer, data, placement, has_service)
    price, dnn_usd = None, run.trainer_type.usd_per_hour if run.trainer_type else None
    data_usd = kind.usd_per_hour if kind else None if data.hosts else 0.0
    if dnn_usd is not None and data_usd is not None:
        price = run.trainer.hosts * dnn_usd + data.hosts * data_usd
    return Option(
        placement=placement,
        data_hosts=data.hosts,
        data_type=kind.name if kind else "",
        prediction=prediction,
        samples_per_s=run.work.batch / prediction.step_s,
        input_bound_share=max(1 - run.work.ideal_step_s / prediction.step_s, 0.0),
        hosts=run.trainer.hosts + data.hosts,
        usd_per_hour=price,
    )
