"""What setup.cfg cannot say: the wheel has the hosts' scripts and Horovod's recipe, and versions are pinned."""

import re
import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
OWN = {  # in the wheel, below headrace/own: headrace/job/bundled.py
    "launcher.py": "code/launcher.py",
    "train_data.py": "code/train_data.py",
    "train_dnn.py": "code/train_dnn.py",
    "train_torch.py": "code/train_torch.py",
    "requirements.txt": "code/requirements.txt",
    "constraints.txt": "code/constraints.txt",
    "third_party/horovod": "third_party/horovod",
}


class BuildWithOwnFiles(build_py):
    def run(self):
        shutil.rmtree(Path(self.build_lib, "headrace"), ignore_errors=True)  # an earlier build's
        super().run()
        if self.editable_mode:
            return
        for name, source in OWN.items():
            target = Path(self.build_lib, "headrace", "own", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, target)


def pinned(name):
    """A requirement with its versions from code/constraints.txt."""
    lines = (ROOT / "code" / "constraints.txt").read_text().splitlines()
    bare = re.match(r"[\w.-]+", name)[0]
    versions = [line[len(bare) :] for line in lines if re.match(rf"{re.escape(bare)}(?![\w.-])", line)]
    return [name + each for each in versions] or [name]


config = ConfigParser()
config.read(ROOT / "setup.cfg")
extras = {
    extra: [each for line in config["extras"][extra].split() for each in pinned(line)] for extra in config["extras"]
}
requires = [each for line in config["requires"]["all"].split() for each in pinned(line)]
setup(cmdclass={"build_py": BuildWithOwnFiles}, install_requires=requires, extras_require=extras)
