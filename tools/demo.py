"""Show how much a job gains from data hosts: run the job here without data hosts, then with data hosts, and compare.

`make demo` does this for two jobs. The first learns to recognize digits, and does not wait for data. The second waits
for data. `make demo-torch` does this for one job, which learns to recognize digits with PyTorch. For the jobs that
learn, HEADRACE_DEMO_EPOCHS sets the number of epochs, and HEADRACE_DEMO_STEPS sets the number of steps per epoch.
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIGITS = {"tensorflow": ROOT / "data" / "digits", "pytorch": ROOT / "data" / "digits-torch"}
TOOLS = {"tensorflow": "make_digits.py", "pytorch": "make_digits_npz.py"}
RUNS = ROOT / "runs"
COMMON = ["--no-is_cloud_job", "--processes_per_host=2", f"--output_dir={RUNS}"]
LEARN = ["--batch_size=32", "--hyperparameter=image_size=32", "--hyperparameter=log_every=5"]
OF = {
    "tensorflow": [*LEARN, "--hyperparameter=model=resnet50"],
    "pytorch": [*LEARN, "--framework=pytorch", "--hyperparameter=model=small_cnn"],
}
EPOCHS = {"tensorflow": "5", "pytorch": "12"}
WAITING = ["--batch_size=128", "--epochs=1", "--steps_per_epoch=100", "--hyperparameter=model=small_cnn",
           "--hyperparameter=image_size=64"]  # fmt: skip
WITHOUT = ["--no-is_hetero", "--tf_data_mode=local"]
WITH = ["--is_hetero", "--tf_data_mode=service", "--num_of_data_instances=2"]


def main() -> int:
    framework = "pytorch" if sys.argv[1:] == ["pytorch"] else "tensorflow"
    digits = DIGITS[framework]
    started = time.monotonic()
    say("making the dataset")
    if call([sys.executable, str(ROOT / "tools" / TOOLS[framework]), str(digits)]):
        return 1
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    epochs = os.environ.get("HEADRACE_DEMO_EPOCHS", EPOCHS[framework])
    learning = [*COMMON, *OF[framework], f"--epochs={epochs}", f"--channel=training={digits}"]
    if steps := os.environ.get("HEADRACE_DEMO_STEPS"):
        learning.append(f"--steps_per_epoch={steps}")
    processors = sorted(os.sched_getaffinity(0))
    last = pair(f"demo-homogeneous-{stamp}", [*learning, *WITHOUT], f"demo-heterogeneous-{stamp}", [*learning, *WITH])
    if last and framework == "tensorflow" and len(processors) > 1:
        say("the model's arithmetic keeps the processors busy here, so data hosts cannot speed up this job")
        say("next, a small model on large images: the training host gets one processor, the data hosts share another")
        first, second = processors[:2]
        alone = [*COMMON, *WAITING, *WITHOUT, f"--cpus=dnn_group={first}"]
        helped = [*COMMON, *WAITING, *WITH, f"--cpus=dnn_group={first};data_group={second}"]
        last = pair(f"demo-alone-{stamp}", alone, f"demo-helped-{stamp}", helped)
        if last:
            tell_efficiency(*last)
            say("`headrace plan` for the first run, as if its host were an ml.g5.xlarge:")
            call([*headrace("plan"), str(last[0]), "--as=ml.g5.xlarge"])
    if not last:
        return 1
    code = call([*headrace("report"), *map(str, last)]) if framework == "tensorflow" else 0
    say(f"finished in {time.monotonic() - started:.0f} s; the runs are in {RUNS}")
    return code


def pair(first: str, first_flags: list[str], second: str, second_flags: list[str]) -> tuple[Path, Path] | None:
    """Run both jobs and print their comparison. Return their folders, or None if one failed."""
    for name, flags in ((first, first_flags), (second, second_flags)):
        say(f"running {name}")
        if call([sys.executable, str(ROOT / "start_job.py"), *flags, f"--job_name={name}"]):
            say(f"{name} failed; its log is in {RUNS / name}")
            return None
    print()
    folders = (RUNS / first, RUNS / second)
    call([*headrace("compare"), *map(str, folders)])
    print()
    return folders


def tell_efficiency(alone: Path, helped: Path) -> None:
    """Print how much faster training is with data hosts on a second processor. The arguments are the jobs' folders."""
    before, after = (json.loads((each / "summary.json").read_text())["samples_per_s"] for each in (alone, helped))
    say(f"two processors train {after / before:.2f} times as fast as one: an efficiency of {after / before / 2:.0%}")


def headrace(command: str) -> list[str]:
    return [sys.executable, "-m", "headrace", command]


def call(command: list[str]) -> int:
    with subprocess.Popen(command, cwd=ROOT) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # only the child can end the job's hosts
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # the job got Ctrl-C too, and is ending its hosts


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
