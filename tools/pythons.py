"""Run the tests under every installed Python that headrace supports, each in a copy of the tree (`make test-pythons`).

    python tools/pythons.py [3.12 ...] [--target test]

A copy, for example .pythons/3.12, has the files that git tracks or would track. It is kept, so a second run is faster.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIES = ROOT / ".pythons"
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pythons.py", description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {' '.join(SUPPORTED)}")
    parser.add_argument("--target", default="test", help="target of the Makefile (%(default)s)")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.versions) - set(SUPPORTED)
    if unknown:
        parser.error(f"Python {min(unknown)} is not supported; choose from {', '.join(SUPPORTED)}")
    outcomes = {}
    for version in arguments.versions or SUPPORTED:
        python = find_python(version)
        if python is None:
            outcomes[version] = "not on this machine"
            continue
        print(f"pythons: make {arguments.target} with {python} …", flush=True)
        started = time.monotonic()
        copy = copy_tree(version)
        code = subprocess.call(["make", arguments.target, f"PYTHON={python}"], cwd=copy)
        outcomes[version] = f"{'passed' if code == 0 else f'FAILED ({code})'} in {time.monotonic() - started:.0f} s"
    print("\n" + "\n".join(f"Python {version:5} {outcome}" for version, outcome in outcomes.items()))
    tried = [outcome for outcome in outcomes.values() if outcome != "not on this machine"]
    return 0 if tried and all(outcome.startswith("passed") for outcome in tried) else 1


def find_python(version: str) -> str | None:
    """Return an interpreter of that version, from PATH or pyenv; None if no such interpreter works."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [shutil.which(f"python{version}"), *sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", f"import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"]
        if subprocess.call(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return candidate
    return None


def copy_tree(version: str) -> Path:
    """Copy this tree, without files that git ignores. Keep the .venv of an earlier run in the copy."""
    copy = COPIES / version
    copy.mkdir(parents=True, exist_ok=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = [name for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0") if name]
    kept = {Path(name) for name in files if (ROOT / name).is_file()}
    for old in [path for path in copy.rglob("*") if path.is_file() and ".venv" not in path.relative_to(copy).parts[0]]:
        if old.relative_to(copy) not in kept:
            old.unlink()
    for name in kept:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    return copy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
