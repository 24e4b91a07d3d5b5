"""`make release`: build a wheel and a source archive in build/dist and check them; with TAG=1, tag the version.

There are two checks. First, twine checks the metadata. Then the wheel is installed in a new virtual environment, and
`headrace setup`, `headrace new`, `headrace run` (with a small network) and `headrace runs` must succeed in an empty
folder. Building and installing need PyPI or a mirror of it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
JOB_TIMEOUT_S = 600
JOB = (
    "--job_name=released", "--num_of_data_instances=1", "--processes_per_host=2", "--batch_size=16", "--epochs=1",
    "--steps_per_epoch=4", "--hyperparameter=model=small_cnn",
)  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="release.py", description=__doc__.splitlines()[0])
    parser.add_argument("--tag", action="store_true", help="tag the checked-out commit with the version")
    given = parser.parse_args(argv)
    version = re.search(r'__version__ = "(.+)"', (ROOT / "code" / "headrace" / "__init__.py").read_text())[1]
    tag = f"v{version}"
    try:
        if given.tag:
            refuse_to_tag(tag, version)
        shutil.rmtree(DIST, ignore_errors=True)
        run(sys.executable, "-m", "build", "-q", "--outdir", DIST, ROOT)
        run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
        try_wheel(*DIST.glob("*.whl"))
        if given.tag:
            run("git", "tag", "-a", tag, "-m", f"headrace {version}")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        sys.exit(f"release: error: {error}; its output is above")
    print(f"release: {', '.join(sorted(path.name for path in DIST.iterdir()))} in {DIST.relative_to(ROOT)}")
    print(
        f"release: tagged {tag}; publish it with git push origin {tag}" if given.tag else "release: not tagged (TAG=1)"
    )
    return 0


def refuse_to_tag(tag: str, version: str) -> None:
    """Exit with an error if changes are uncommitted, the tag exists, or CHANGELOG.md has no heading for the version."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        sys.exit("release: error: there are uncommitted changes; commit them before you tag")
    if subprocess.check_output(["git", "tag", "--list", tag], cwd=ROOT):
        sys.exit(f"release: error: {tag} exists; raise __version__ in code/headrace/__init__.py")
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text().replace("[", "").replace("]", ""):
        sys.exit(f"release: error: CHANGELOG.md has no heading for {version}; rename Unreleased")


def try_wheel(wheel: Path) -> None:
    """Install the wheel in a new virtual environment, and run a job with it from an empty folder."""
    with tempfile.TemporaryDirectory(prefix="headrace-release-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        programs = folder / "venv" / "bin"
        constraints = ROOT / "code" / "constraints.txt"
        run(programs / "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints, f"{wheel}[local]")
        environ = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEADRACE_", "SM_"))
        }
        environ["PATH"] = f"{programs}:{environ['PATH']}"
        project = folder / "project"
        run("headrace", "setup", cwd=folder, env=environ)
        run("headrace", "new", project, cwd=folder, env=environ)
        run("headrace", "run", *JOB, cwd=project, env=environ, timeout=JOB_TIMEOUT_S)
        run("headrace", "runs", cwd=project, env=environ)
        outcome = json.loads((project / "runs" / "released" / "summary.json").read_text())["outcome"]
        if outcome != "succeeded":
            sys.exit(
                f"release: error: a job that used the wheel ended with the outcome {outcome!r}; the output is above"
            )


def run(*command: object, cwd: Path = ROOT, **options: object) -> None:
    print("release: " + " ".join(map(str, command))[:200], flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, check=True, **options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
