"""`make demo`: ResNet50 on handwritten digits, without and with data hosts, then both runs side by side.

`make demo-torch`: the same with PyTorch and a small network.
"""

import datetime
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIGITS = {"tensorflow": ROOT / "data" / "digits", "pytorch": ROOT / "data" / "digits-torch"}
TOOLS = {"tensorflow": "make_digits.py", "pytorch": "make_digits_npz.py"}
RUNS = ROOT / "runs"
COMMON = [
    "--no-is_cloud_job",
    "--processes_per_host=2",
    "--batch_size=32",
    "--hyperparameter=image_size=32",
    "--hyperparameter=log_every=5",
    f"--output_dir={RUNS}",
]
OF = {
    "tensorflow": ["--epochs=5", "--hyperparameter=model=resnet50"],
    "pytorch": ["--framework=pytorch", "--epochs=12", "--hyperparameter=model=small_cnn"],
}
WITHOUT = ["--no-is_hetero", "--tf_data_mode=local"]
WITH = ["--is_hetero", "--tf_data_mode=service", "--num_of_data_instances=2", "--num_of_dnn_instances=1"]


def main() -> int:
    framework = "pytorch" if sys.argv[1:] == ["pytorch"] else "tensorflow"
    digits = DIGITS[framework]
    common = [*COMMON, *OF[framework], f"--channel=training={digits}"]
    started = time.monotonic()
    say("making the dataset")
    if run([sys.executable, str(ROOT / "tools" / TOOLS[framework]), str(digits)]):
        return 1
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    jobs = {f"demo-homogeneous-{stamp}": WITHOUT, f"demo-heterogeneous-{stamp}": WITH}
    for name, flags in jobs.items():
        say(f"running {name}")
        if run([sys.executable, str(ROOT / "start_job.py"), *common, *flags, f"--job_name={name}"]):
            say(f"{name} failed; its log is in {RUNS / name}")
            return 1
    print()
    compare = [sys.executable, "-m", "headrace.report.compare", *(str(RUNS / name) for name in jobs)]
    code = run(compare)
    say(f"finished in {time.monotonic() - started:.0f} s")
    return code


def run(command: list[str]) -> int:
    try:
        return subprocess.call(command, cwd=ROOT)
    except KeyboardInterrupt:
        return 1


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
