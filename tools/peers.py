"""Install packages that conflict with TensorFlow or with each other, each in its own folder: `peers.py NAME …`.

    sdk2, sdk3  both SageMaker Python SDKs, for the documentation's snippets (make conformance)
    torch       PyTorch's DataLoader, to compare with (bench.pipeline); its wheels bring CUDA, 5 GB on disk
    ray         Ray Data, to compare with (make bench); goes to the end of sys.path, since Ray's actors run TensorFlow

Each goes to .venv-peers/NAME, once. If one cannot be installed, a message says so, and tests that need it are skipped.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-peers"
CONSTRAINTS = ROOT / "code" / "constraints.txt"
MOTO = "moto[iam,logs,s3,sagemaker,sts]"
ENVIRONMENTS = {
    "sdk2": ["sagemaker>=2.250,<3", MOTO],
    "sdk3": ["sagemaker>=3,<4", MOTO],
    "torch": ["torch", "numpy"],
}
FOLDERS = {"ray": ["ray[data]==2.60.0", "pydantic"]}
ONLY_MOTO = ("sdk2", "sdk3")
"""Environments in which code/constraints.txt pins only moto. The file's other pins conflict with the SDKs."""


def main(names: list[str]) -> int:
    for name in names:
        folder = FOLDER / name
        requirements = ENVIRONMENTS.get(name) or FOLDERS[name]
        if (folder / ".ready").exists():
            continue
        print(f"peers: installing {requirements[0]} into {folder.relative_to(ROOT)} (a minute or two) …", flush=True)
        python, target = sys.executable, ["--target", str(folder), "--upgrade"]
        if name in ENVIRONMENTS:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            python, target = str(folder / "bin" / "python"), []
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-warn-conflicts"]
        if not sys.dont_write_bytecode:
            pip.append("--no-compile")  # Python compiles what it imports, a small part of these packages
        constraints = CONSTRAINTS
        if name in ONLY_MOTO:
            constraints = folder / "constraints.txt"
            pins = CONSTRAINTS.read_text().splitlines()
            constraints.write_text("\n".join(line for line in pins if line.startswith("moto")))
        if subprocess.call([*pip, *target, "-c", str(constraints), *requirements]):
            print(f"peers: {requirements[0]} cannot be installed; tests that need it are skipped", file=sys.stderr)
            continue
        (folder / ".ready").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
