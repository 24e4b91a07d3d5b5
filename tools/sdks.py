"""Both SageMaker Python SDKs, each in an environment of its own: they cannot be installed side by side.

Made under .venv-peers/sdk2 and .venv-peers/sdk3, once; `make conformance` runs the documentation's snippets in them.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-peers"
SDKS = {"sdk2": "sagemaker>=2.250,<3", "sdk3": "sagemaker>=3,<4"}
MOTO = "moto[iam,logs,s3,sagemaker,sts]==5.2.5"


def main() -> int:
    for name, requirement in SDKS.items():
        folder = FOLDER / name
        if (folder / ".ready").exists():
            continue
        print(f"conformance: installing {requirement} into {folder.relative_to(ROOT)} (a minute or two) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if subprocess.call([*pip, requirement, MOTO]):
            print(f"conformance: {requirement} cannot be installed; its snippet is skipped", file=sys.stderr)
            continue
        (folder / ".ready").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
