"""Horovod's build finds NCCL where images have it, and reports the error if it fails. No test needs a compiler."""

import importlib.util
import sys

import pytest

from tests.support import ROOT


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("horovod_build", ROOT / "third_party" / "horovod" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    """A CUDA folder like that of AWS's image, with NCCL copied from PyPI's wheel."""
    for name in ("include/nccl.h", "lib64/libnccl.so.2"):
        (tmp_path / "cuda" / name).parent.mkdir(parents=True)
        (tmp_path / "cuda" / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.delenv("HOROVOD_NCCL_HOME", raising=False)
    return tmp_path / "cuda"


def test_nccl_without_the_name_that_linkers_look_for_gets_it(build, cuda, tmp_path):
    found = build.nccl_environ(tmp_path / "nccl")
    assert found["HOROVOD_NCCL_INCLUDE"] == str(cuda / "include")
    assert found["HOROVOD_NCCL_LINK"] == "SHARED"
    assert (tmp_path / "nccl" / "libnccl.so").resolve() == cuda / "lib64" / "libnccl.so.2"
    assert found["HOROVOD_NCCL_LIB"] == str(tmp_path / "nccl")


def test_nccl_that_can_be_linked_or_was_named_is_left_alone(build, cuda, tmp_path, monkeypatch):
    (cuda / "lib64" / "libnccl.so").touch()
    assert build.nccl_environ(tmp_path / "nccl") == {}
    (cuda / "lib64" / "libnccl.so").unlink()
    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/somewhere")
    assert build.nccl_environ(tmp_path / "nccl") == {}


def test_a_failed_build_tells_the_error_and_not_only_the_last_lines(build, tmp_path):
    script = "print('CMake Error: Could NOT find NCCL'); [print('noise', n) for n in range(50)]; raise SystemExit(1)"
    with pytest.raises(build.BuildError, match="Could NOT find NCCL"):
        build.run([sys.executable, "-c", script], "compiling", tmp_path / "build.log")
