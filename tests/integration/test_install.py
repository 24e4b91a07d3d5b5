"""Horovod and the transfer library, which images lack, are built once, and later jobs fetch them from the bucket."""

import sys
import tarfile

import boto3
import pytest
from botocore.exceptions import ClientError
from headrace.job.artifact_cache import Store, open_store
from headrace.tensorflow import install_horovod as install
from headrace.tensorflow.service.transfer import build as transfer_build
from headrace.tensorflow.service.transfer import library_path
from moto import mock_aws

from tests.support import ROOT, run_job

BUILD = """
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--cache", type=pathlib.Path)
parser.add_argument("--key", action="store_true")
arguments = parser.parse_args()
if arguments.key:
    print("tf2-cp3-abc")
    sys.exit()
folder = arguments.cache / "tf2-cp3-abc"
if not list(folder.glob("*.whl")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "horovod-0-py3.whl").write_text("built")
    with open({log!r}, "a") as log:
        log.write("built\\n")
"""


@pytest.fixture
def bucket(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="wheels")
        yield client


def test_the_wheel_is_built_once_and_fetched_by_the_next_job(tmp_path, bucket):
    log, recipe = tmp_path / "log", tmp_path / "build.py"
    recipe.write_text(BUILD.format(log=str(log)))
    with tarfile.open(tmp_path / "recipe.tar.gz", "w:gz") as tar:
        tar.add(recipe, arcname="build.py")
    bucket.upload_file(str(tmp_path / "recipe.tar.gz"), "wheels", "job/wheels/recipe.tar.gz")
    environ = {"HEADRACE_WHEELS": "s3://wheels/job/wheels"}
    assert install.main(tmp_path, environ) == 0
    assert bucket.get_object(Bucket="wheels", Key="job/wheels/tf2-cp3-abc/horovod-0-py3.whl")["Body"].read() == b"built"
    assert install.main(tmp_path, environ) == 0
    assert log.read_text() == "built\n"


def test_without_a_recipe_it_says_so(tmp_path, bucket, capsys):
    assert install.main(tmp_path, {"HEADRACE_WHEELS": "s3://wheels/job/wheels"}) == 1
    assert "cannot install Horovod: cannot fetch s3://wheels/job/wheels/recipe.tar.gz" in capsys.readouterr().err


def test_a_bucket_out_of_reach_costs_a_build_and_no_more(tmp_path, bucket, capsys):
    folder = tmp_path / "third_party" / "horovod"
    folder.mkdir(parents=True)
    (folder / "build.py").write_text(BUILD.format(log=str(tmp_path / "log")))
    assert install.main(tmp_path, {"HEADRACE_WHEELS": "s3://no-such-bucket/wheels"}) == 0
    assert (tmp_path / "log").read_text() == "built\n"
    assert "cannot fetch from s3://no-such-bucket/wheels" in capsys.readouterr().err


def test_what_is_listed_and_cannot_be_fetched_is_built(tmp_path, capsys):
    class Client:
        def list_objects_v2(self, Bucket, Prefix):
            return {"Contents": [{"Key": f"{Prefix}horovod.whl"}]}

        def download_file(self, *_):
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "GetObject")

    store = Store("s3://wheels/job", Client())
    assert store.fetch_kept("key", ".whl", tmp_path) is None
    store.keep(tmp_path / "horovod.whl", "key/horovod.whl")
    assert "AccessDenied" in capsys.readouterr().err


def test_without_a_way_to_aws_there_is_no_store(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert open_store({"HEADRACE_WHEELS": "s3://wheels/job"}) is None
    assert "cannot use s3://wheels/job" in capsys.readouterr().err


def test_the_transfers_library_is_compiled_once_and_fetched_by_the_next_job(tmp_path, bucket, monkeypatch, capfd):
    monkeypatch.setenv("HEADRACE_WHEELS", "s3://wheels/job/wheels")
    first, second = tmp_path / "first" / "transfer.so", tmp_path / "second" / "transfer.so"
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\ncp {library_path()} $2\n")  # in no time
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert transfer_build.main([f"--library={first}"]) == 0
    assert "compiling" in capfd.readouterr().out
    compiler.write_text("#!/bin/sh\necho called >&2; exit 1\n")
    assert transfer_build.main(["--once", f"--library={second}"]) == 0
    assert "using the build of an earlier job: s3://wheels/job/wheels/transfer/transfer.so" in capfd.readouterr().err
    assert second.read_bytes() == first.read_bytes()
    bucket.put_object(Bucket="wheels", Key="job/wheels/transfer/other.so", Body=b"no library")
    assert transfer_build.main([f"--library={tmp_path / 'other.so'}"]) == 1
    assert "the library fetched from S3 does not load" in capfd.readouterr().err


def copy_of_code(tmp_path):
    import shutil

    source = tmp_path / "source"
    shutil.copytree(ROOT / "code", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (source / "launcher.py").rename(source / "real_launcher.py")
    return source


def test_training_begins_once_horovod_is_installed(tmp_path):
    source = copy_of_code(tmp_path)
    (source / "launcher.py").write_text(
        "import importlib.util, headrace.frameworks.horovod as jobs\n"
        "jobs.find_spec = lambda name: None if name == 'horovod' else importlib.util.find_spec(name)\n"
        "from headrace.host.main import entry_point\n"
        "entry_point(__file__)\n"
    )
    (source / "third_party" / "horovod").mkdir(parents=True)
    (source / "third_party" / "horovod" / "build.py").write_text(
        "import time\nprint('building', flush=True)\ntime.sleep(8)\n" + BUILD.format(log=str(tmp_path / "log"))
    )
    (source / "hello.py").write_text("from mpi4py import MPI\n")
    run = run_job(
        tmp_path,
        f"--source_dir={source}",
        "--training_script=hello.py",
        "--num_of_data_instances=1",
        "--hyperparameter=lease_s=60",
    )
    assert run.code == 0, run.output
    leader = run.log("algo-2")
    assert (tmp_path / "log").read_text() == "built\n"
    assert "Horovod to be installed on algo-2" in leader
    assert leader.index("building") < leader.index("event=training_started")
    assert "building" not in run.log("algo-1")
