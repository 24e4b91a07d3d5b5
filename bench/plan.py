"""Compare the predictions of `headrace plan` with real jobs.

    python -m bench.plan [--repeats 1]

The trainer's step is a fixed wait (bench/scripts/planned_step.py) on a host with one processor; each data host has a
third of the other processor. There are three pipelines: "light", "sample's" and "heavy". All flip images. "light" does
nothing else, and is never input-bound. The others also augment images: "sample's" once, "heavy" three times. Each
pipeline first has one homogeneous run. From this run, every placement with 0 to 3 data hosts is predicted. Then these
placements are run. Prices are invented: 10 $/h for the trainer's host, 1 $/h for a data host.
"""

import uuid

from headrace.job.instances import InstanceTable
from headrace.report.measured import measured
from headrace.report.predict import Group, predict

from bench import jobs, measure
from bench.quotas import quotas

PIPELINES = {"light": 0, "sample's": 1, "heavy": 3}
"""The number of times that each pipeline applies the augmentation."""
HOST_CPUS = 1 / 3
MOST_HOSTS = 3
TRAINER_USD, DATA_USD = 10.0, 1.0
UNLIMITED = 1e12


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=1).repeats
    first, second = measure.two_processors()
    rows, errors, choices = [], [], []
    with jobs.source_dir() as source:
        for name, times in PIPELINES.items():
            alone = ["--no-is_hetero", f"--cpus=dnn_group={first}"]
            run = _run(source, times, alone, {})
            plan = measured(run.summary, InstanceTable({}, ""))
            options = [("trainer", 0)] + [
                (each, count) for count in range(1, MOST_HOSTS + 1) for each in ("data", "both")
            ]
            costs = {}
            for placement, count in options:
                data = Group(count, HOST_CPUS, UNLIMITED)
                predicted = predict(plan.work, plan.trainer, data, placement)
                flags = [
                    f"--num_of_data_instances={count}",
                    f"--cpus=dnn_group={first};data_group={second}",
                    f"--local_workers={'off' if placement == 'data' else 'on'}",
                ]
                hosts = {f"algo-{number}": HOST_CPUS for number in range(1, count + 1)}
                taken = [
                    jobs.measured(_run(source, times, flags if count else alone, hosts))["step_ms"]
                    for _ in range(repeats)
                ]
                step_ms = measure.median(taken)
                error = predicted.step_s * 1000 / step_ms - 1
                price = TRAINER_USD + count * DATA_USD
                costs[placement, count] = (predicted.step_s * price, step_ms * price)
                errors.append(abs(error))
                rows.append(
                    {
                        "pipeline": name,
                        "batches by": placement,
                        "data hosts": count,
                        "predicted ms": predicted.step_s * 1000,
                        "measured ms": step_ms,
                        "error": f"{error:+.0%}",
                        "limit": predicted.limit,
                    }
                )
                print("plan:", *rows[-1].values(), flush=True)
            chosen = min(costs, key=lambda each: costs[each][0])
            choices.append(costs[chosen][1] / min(real for _, real in costs.values()))
    figures = {"plan_error_max": max(errors), "plan_choice_vs_best": max(choices)}
    measure.leave("plan", figures, rows, repeats=repeats)


def _run(source, times, flags, hosts):
    name = f"plan-{uuid.uuid4().hex[:8]}"
    with quotas(name, hosts):
        return jobs.run(source, "planned_step.py", "--processes_per_host=1", *flags, job_name=name, times=times)


if __name__ == "__main__":
    main()
