"""Measure the gain from a data host on a second processor, and how close a job comes to the accelerator's limit.

    python -m bench.scaling [--repeats 5]

The trainer's step is a fixed wait (bench/scripts/fixed_step.py) in place of an accelerator. "alone" is a homogeneous
job on one processor; "with a data host" adds a data host on a second one. Efficiency is the ratio of their images/s,
divided by two, since there are twice as many processors. In the last two rows the fixed wait is longer than the time
in which two processors make a batch. There, "ideal" is the rate of steps on a batch that is already in memory.
"""

from bench import jobs, measure

FORMS = {"image_by_image": "image by image", "ours": "ours"}
BATCH, LIMITED_BATCH, LIMITED_WAIT_MS = 512, 256, 40.0


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    first, second = measure.two_processors()
    alone = ["--no-is_hetero", "--processes_per_host=1", f"--cpus=dnn_group={first}"]
    helped = ["--num_of_data_instances=1", "--processes_per_host=1", f"--cpus=dnn_group={first};data_group={second}"]
    rates = {}
    with jobs.source_dir() as source:

        def images_per_s(flags, **how):
            return jobs.measured(jobs.run(source, "fixed_step.py", *flags, f"--batch_size={how.pop('batch')}", **how))

        for repeat in range(repeats):
            for form in FORMS:
                for name, flags in (("alone", alone), ("with a data host", helped)):
                    run = images_per_s(flags, form=form, batch=BATCH)
                    rates.setdefault((form, name), []).append(run["images_per_s"])
            run = images_per_s(helped, form="ours", batch=LIMITED_BATCH, wait_ms=LIMITED_WAIT_MS)
            rates.setdefault("limited", []).append(run["images_per_s"])
            rates.setdefault("ideal", []).append(LIMITED_BATCH * 1000 / run["ideal_ms"])
            print(f"scaling: {repeat + 1} of {repeats}", flush=True)

    def ratio(one, other):
        return measure.median([a / b for a, b in zip(rates[one], rates[other], strict=True)])

    rows, figures = [], {}
    for form, title in FORMS.items():
        gain = ratio((form, "with a data host"), (form, "alone"))
        rows += [row(f"{title}, {name}", rates[form, name]) for name in ("alone", "with a data host")]
        figures[f"scaling_efficiency_{form}"] = gain / 2
    figures["scaling_efficiency"] = figures["scaling_efficiency_ours"]
    rows += [row("ideal, if the accelerator is the limit", rates["ideal"]), row("… with a data host", rates["limited"])]
    figures["hetero_vs_ideal"] = ratio("limited", "ideal")
    measure.leave("scaling", figures, rows, repeats=repeats)


def row(title, values):
    return {"job": title, "images/s": measure.median(values)}


if __name__ == "__main__":
    main()
