"""Make a .venv with pinned packages and Horovod (`make setup`), or a .venv-torch for PyTorch (`make setup-torch`).

This runs on the system's own Python. A stamp in the environment records the files that it was made from; if they have
not changed, there is nothing to do.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOR_TORCH = sys.argv[1:] == ["torch"]
VENV = os.path.join(ROOT, ".venv-torch" if FOR_TORCH else ".venv")
STAMP = os.path.join(VENV, ".headrace-setup")
PYTHON = os.path.join(VENV, "bin", "python")
OLDEST, NEWEST = (3, 10), (3, 13)
MADE_FROM = (
    "pyproject.toml",
    "code/constraints.txt",
    "third_party/horovod",
    "tools/setup.py",
    "code/headrace/tensorflow/service/transfer",
)
EXTRAS = (
    "torch,report,digits,notebooks,gallery,test" if FOR_TORCH else "local,submit,report,digits,notebooks,site,test,dev"
)


def main():
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        use_another_python()
        fail(
            "Python {}.{} does not work; TensorFlow needs 3.{} to 3.{}: make PYTHON=python3.12".format(
                sys.version_info[0], sys.version_info[1], OLDEST[1], NEWEST[1]
            )
        )
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        fail(
            "this machine is {} {}; headrace's local mode needs Linux on x86-64".format(
                sys.platform, os.uname().machine
            )
        )
    made_from = fingerprint()
    if done(made_from):
        return
    for program in () if FOR_TORCH else ("gcc", "g++", "make"):
        if not shutil.which(program):
            fail(
                "{} is not installed; it is needed to build Horovod (Debian: apt-get install gcc g++ make)".format(
                    program
                )
            )
    started = time.time()
    make_venv()
    say("installing {}, Open MPI and the rest (a minute or two) …".format("PyTorch" if FOR_TORCH else "TensorFlow"))
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    if not sys.dont_write_bytecode:
        # Python compiles a module at its first import. pip would compile all modules, and most are never imported.
        pip.append("--no-compile")
    run(pip + ["-c", "code/constraints.txt", "-e", ".[{}]".format(EXTRAS)], "pip install")
    if not FOR_TORCH:
        run([PYTHON, "third_party/horovod/build.py"], "the Horovod build")
        # This build is optional and prints its own errors. Without its library, batches travel more slowly.
        subprocess.call([PYTHON, "-m", "headrace.tensorflow.service.transfer.build"], cwd=ROOT)
    with open(STAMP, "w") as stamp:
        stamp.write(made_from)
    say("ready in {:.0f} s; use {}/bin/python".format(time.time() - started, os.path.basename(VENV)))


def use_another_python():
    """Run this program again in a suitable Python, if one is installed under a name such as python3.12."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        other = shutil.which("python3.{}".format(minor))
        if other and subprocess.call([other, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(other, [other, os.path.abspath(__file__), *sys.argv[1:]])


def make_venv():
    same = "import pip, sys; sys.exit(sys.version_info[:2] != {!r})".format(tuple(sys.version_info[:2]))
    if os.path.exists(PYTHON) and subprocess.call([PYTHON, "-c", same], stderr=subprocess.DEVNULL) == 0:
        return
    say("making {} with Python {}.{} …".format(os.path.basename(VENV), *sys.version_info[:2]))
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        fail(
            "{} cannot make a virtual environment; its venv module is incomplete "
            "(Debian: apt-get install python3-venv)".format(sys.executable)
        )


def done(made_from):
    """Return whether the environment was made from the current files, and still runs."""
    try:
        with open(STAMP) as stamp:
            return stamp.read() == made_from and subprocess.call([PYTHON, "-c", ""]) == 0
    except OSError:
        return False


def fingerprint():
    digest = hashlib.sha256("{} {} {}".format(sys.version, ROOT, EXTRAS).encode())
    for name in MADE_FROM:
        top = os.path.join(ROOT, name)
        paths = [top]
        if os.path.isdir(top):
            paths = [
                os.path.join(at, file) for at, _, files in os.walk(top) for file in files if "__pycache__" not in at
            ]
        for path in sorted(paths):
            with open(path, "rb") as file:
                digest.update(path.encode() + file.read())
    return digest.hexdigest()


def run(command, what):
    code = subprocess.call(command, cwd=ROOT)
    if code:
        fail("{} failed with exit code {}; its output is above".format(what, code))


def say(text):
    print("setup: " + text, flush=True)


def fail(text):
    sys.exit("setup: error: " + text)


if __name__ == "__main__":
    main()
