"""Run whole jobs on a GPU, in TensorFlow and in PyTorch, with and without data hosts.

    PYTHONPATH=code:. python bench/gpu_jobs.py [--steps 150] [--batch_size 128] [--own_cpus 2] [--only pytorch]

Jobs train the ResNet50 of train_dnn.py and train_torch.py on made-up images, on simulated hosts of this machine. The
dnn host has `--own_cpus` processors; two data hosts share the others. Each framework has three jobs: "alone" has no
data hosts, "with data hosts" has two, and in the third only the data hosts make batches. TensorFlow's three jobs are in
float32; a fourth, with data hosts, is in bfloat16. PyTorch's jobs are in bfloat16 if the GPU supports that.
`headrace plan` predicts the second job's step time from the first job. The figures `…_plan_error` are the predictions'
relative errors. Needs the environments of `make setup` and `make setup-torch`. Writes bench/out/gpu_jobs.json.

Without a GPU, test the program with `--device cpu --model small_cnn --image_size 32 --batch_size 16 --steps 30
--own_cpus 1`. The figures of such a test mean nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA_HOSTS = 2
# Name: framework, flags, script.
ALONE, FED = ("--no-is_hetero",), (f"--num_of_data_instances={DATA_HOSTS}",)
JOBS = {
    "tensorflow, alone": ("tensorflow", ALONE, "train_dnn.py"),
    "tensorflow, with data hosts": ("tensorflow", (*FED, "--local_workers=on"), "train_dnn.py"),
    "tensorflow, no worker beside the trainer": ("tensorflow", (*FED, "--local_workers=off"), "train_dnn.py"),
    "tensorflow, with data hosts, bfloat16": ("tensorflow", (*FED, "--local_workers=on"), "bfloat16.py"),
    "pytorch, alone": ("pytorch", ALONE, "train_torch.py"),
    "pytorch, with data hosts": ("pytorch", (*FED, "--local_workers=on"), "train_torch.py"),
    "pytorch, no server beside the trainer": ("pytorch", (*FED, "--local_workers=off"), "train_torch.py"),
}
PYTHONS = {"tensorflow": ROOT / ".venv" / "bin" / "python", "pytorch": ROOT / ".venv-torch" / "bin" / "python"}
LIMIT_S = 900


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--model", choices=["resnet50", "small_cnn"], default="resnet50")
    parser.add_argument("--own_cpus", type=int, default=2, help="processors of the training host (%(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=list(PYTHONS), help="jobs of one framework")
    parser.add_argument("--isolation", default="auto")
    for name, python in PYTHONS.items():
        parser.add_argument(f"--{name}_python", type=Path, default=python, metavar="FILE")
    return parser.parse_args(argv)


def run(given, name, folder, cpus):
    """Run a job and return its summary. If the job fails, print why and return None."""
    framework, flags, script = JOBS[name]
    own, others = cpus[: given.own_cpus], cpus[given.own_cpus :] or cpus
    listed = ",".join(map(str, own))
    groups = f"dnn_group={listed}" + (f";data_group={','.join(map(str, others))}" if flags[0] != ALONE[0] else "")
    job = "".join(each if each.isalnum() else "-" for each in name)
    more = {"image_size": given.image_size, "model": given.model, "log_every": 20}
    if framework == "pytorch":
        more |= {"examples": given.steps * given.batch_size, "num_workers": 0 if given.own_cpus == 1 else 2}
    command = [
        getattr(given, f"{framework}_python"),
        ROOT / "start_job.py",
        "--no-is_cloud_job",
        f"--framework={framework}",
        f"--job_name={job}",
        f"--output_dir={folder}",
        f"--source_dir={source_dir(folder)}",
        f"--training_script={script}",
        "--processes_per_host=1",
        "--epochs=1",
        f"--batch_size={given.batch_size}",
        f"--steps_per_epoch={given.steps}",
        f"--cpus={groups}",
        f"--isolation={given.isolation}",
        *flags,
        *(f"--hyperparameter={key}={value}" for key, value in more.items()),
    ]
    environ = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if given.device == "cpu" else {})
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        print(f"gpu_jobs: {name} failed:\n{done.stdout[-2000:]}", flush=True)
        return None
    print(f"gpu_jobs: {name} is done", flush=True)
    return json.loads((folder / job / "summary.json").read_text())


def source_dir(folder):
    """Copy the project's source dir, with this benchmark's script in it."""
    source = folder / "source"
    if not source.exists():
        shutil.copytree(ROOT / "code", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "bench" / "scripts" / "bfloat16.py", source)
    return source


def row(summary):
    """Return a job's row of the table."""
    (dnn,) = (host for host in summary["hosts"].values() if host["group"] != "data_group")
    parts = summary["step_parts_ms"]
    return {
        "step ms": summary["step_time_ms"]["median"], "mean ms": summary["step_time_ms"]["mean"],
        "ideal ms": summary["ideal_step_time_ms"], "waiting": f"{summary['input_bound_share']:.0%}",
        "copy ms": "-" if parts["copying"] is None else round(parts["copying"], 2),
        "images/s": summary["samples_per_s"], "GPU": f"{dnn['gpu']['utilization']:.0%}" if dnn["gpu"] else "-",
        "first step s": summary["time_to_first_step_s"], "limited by": summary["limited_by"] or "-",
    }  # fmt: skip


def foretold_ms(alone, cpus_of_data_host):
    """Predict the step time in ms with data hosts, as `plan` does. `alone`: the summary of a job without data hosts."""
    from headrace.job.instances import read_instances
    from headrace.report.candidates import options
    from headrace.report.measured import measured

    found = options(measured(alone, read_instances()), [], DATA_HOSTS, cpus_of_data_host)
    (both,) = (each for each in found if (each.data_hosts, each.placement) == (DATA_HOSTS, "both"))
    return both.prediction.step_s * 1000


def main(argv=None):
    given = parse(argv)
    from bench.measure import leave

    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) <= given.own_cpus:
        sys.exit(f"gpu_jobs: error: --own_cpus takes all {len(cpus)} processors: leave some for the data hosts")
    names = [name for name, (framework, *_) in JOBS.items() if given.only in (None, framework)]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        found = {name: run(given, name, Path(folder), cpus) for name in names}
    summaries = {name: summary for name, summary in found.items() if summary}
    figures = {}
    for framework in PYTHONS:
        alone, fed = (summaries.get(f"{framework}, {which}") for which in ("alone", "with data hosts"))
        if alone and fed:
            step_ms = fed["step_time_ms"]["mean"]
            figures[f"gpu_jobs_{framework}_speedup"] = alone["step_time_ms"]["mean"] / step_ms
            foretold = foretold_ms(alone, (len(cpus) - given.own_cpus) / DATA_HOSTS)
            figures[f"gpu_jobs_{framework}_plan_error"] = foretold / step_ms - 1
    rows = [{"job": name, **row(summary)} for name, summary in summaries.items()]
    if not rows:
        sys.exit("gpu_jobs: error: no job has succeeded")
    failed = sorted(set(found) - set(summaries))
    leave("gpu_jobs", figures, rows, device=given.device, processors=len(cpus), failed=failed)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
