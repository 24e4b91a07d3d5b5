"""Hosts get the source dir without ignored files; unsuitable files are refused, and equal dirs give equal archives."""

import os
import re
import tarfile
from pathlib import Path

import pytest
from headrace.backends.sagemaker.pack import files_to_send, pack_files
from headrace.errors import InputError
from headrace.job.bundled import own_folder
from headrace.job.source import host_files, refuse_shadows, refuse_too_much, source_files

CODE = own_folder()


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(folder):
    return [file.as_posix() for file in source_files(folder)]


def test_gitignore_files_are_honoured_like_git_does(tmp_path):
    write(
        tmp_path,
        launcher_dot_py="",
        data__big_dot_bin="",
        data__keep_dot_bin="",
        sub__notes_dot_txt="",
        sub__a_dot_py="",
    )
    (tmp_path / ".gitignore").write_text("*.bin\n!keep.bin\n")
    (tmp_path / "sub" / ".gitignore").write_text("/notes.txt\n")
    assert names(tmp_path) == [".gitignore", "data/keep.bin", "launcher.py", "sub/.gitignore", "sub/a.py"]


def test_caches_and_version_control_never_travel(tmp_path):
    write(tmp_path, a_dot_py="", _dot_git__HEAD="")
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pkg" / "__pycache__" / "a.pyc").touch()
    (tmp_path / ".pytest_cache").mkdir()
    (tmp_path / ".pytest_cache" / "x").touch()
    assert names(tmp_path) == ["a.py"]


def test_links_are_followed_once(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    write(outside, shared_dot_py="x = 1")
    write(inside, a_dot_py="")
    (inside / "shared").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    (inside / "dangling").symlink_to(tmp_path / "nowhere")
    assert names(inside) == ["a.py", "shared/shared.py"]


def test_the_archive_of_a_source_dir_with_a_headrace_of_its_own_holds_just_that_and_is_the_same_each_time(tmp_path):
    source = tmp_path / "source"
    write(source, launcher_dot_py="print(1)", headrace__a_dot_py="x = 1")
    (source / "headrace" / "__init__.py").touch()
    os.link(source / "launcher.py", source / "copy.py")
    pack_files(files_to_send(source), tmp_path / "1.tar.gz")
    os.utime(source / "launcher.py", (1, 1))
    pack_files(files_to_send(source), tmp_path / "2.tar.gz")
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        content = {member.name: tar.extractfile(member).read().decode() for member in tar}
    assert content == {
        "copy.py": "print(1)",
        "launcher.py": "print(1)",
        "headrace/__init__.py": "",
        "headrace/a.py": "x = 1",
    }


def test_other_source_dirs_get_headraces_files_and_both_requirements(tmp_path):
    write(tmp_path / "source", train_dot_py="x = 1", requirements_dot_txt="tqdm", runs__large_dot_py="")
    files = host_files(tmp_path / "source", [tmp_path / "source" / "runs"])
    places = {place.as_posix() for place in files}
    assert {"train.py", "launcher.py", "train_data.py", "headrace/host/main.py", "headrace/constraints.txt"} <= places
    assert "runs/large.py" not in places and "train_dnn.py" not in places
    pinned = set(re.findall(r"^[\w-]+", files[Path("headrace/constraints.txt")].decode(), re.MULTILINE))
    assert {"tensorflow", "grpcio", "mpi4py"} <= pinned
    assert not pinned & {"pytest", "numpy", "matplotlib", "rich", "boto3", "mlflow-skinny"}  # left to the user
    said = files[Path("requirements.txt")].decode().splitlines()
    assert said[0] == "tqdm" and "-c headrace/constraints.txt" in said and "grpcio" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "A=1"),
        ("key.pem", ""),
        ("id_rsa", ""),
        ("config.py", "KEY = '-----BEGIN RSA PRIVATE KEY-----'"),
        ("config.py", "id = 'AKIAIOSFODNN7EXAMPLE'"),
    ],
)
def test_what_looks_like_a_secret_is_refused_until_it_is_ignored(tmp_path, name, text):
    source = tmp_path / "source"
    write(source, a_dot_py="")
    (source / name).write_text(text)
    with pytest.raises(InputError, match=f"holds {name}"):
        pack_files(files_to_send(source), tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()
    (source / ".gitignore").write_text(name)
    pack_files(files_to_send(source), tmp_path / "x.tar.gz")


def test_too_much_is_refused_and_the_largest_file_is_named(tmp_path):
    write(tmp_path, a_dot_py="x" * 10, weights_dot_bin="x" * 2_000_000)
    with pytest.raises(InputError, match=r"holds 2 MB \(limit 1 MB\), weights.bin alone 2 MB"):
        refuse_too_much(tmp_path, source_files(tmp_path), limit_bytes=1_000_000)


@pytest.mark.parametrize("relative", [False, True])
def test_a_file_that_is_left_out_stays_but_never_the_source_dir_itself(tmp_path, monkeypatch, relative):
    write(tmp_path, a_dot_py="", data_dot_bin="")
    monkeypatch.chdir(tmp_path)
    folder = Path(".") if relative else tmp_path
    assert [file.name for file in source_files(folder, [folder / "data.bin", folder])] == ["a.py"]


def test_virtual_environments_stay_whatever_their_name_and_broken_patterns_are_passed_over(tmp_path):
    write(tmp_path, a_dot_py="", env__pyvenv_dot_cfg="", env__lib__x_dot_py="", b_dot_bin="")
    (tmp_path / ".gitignore").write_text("a\\\n!\n[z-a]\n*.bin\n")
    assert names(tmp_path) == [".gitignore", "a.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"tqdm", ["tqdm"]),
        (b"tqdm\r\nheadrace[local]\n", ["tqdm"]),
        (b"headrace-tools==1\n-r more.txt", ["headrace-tools==1", "-r more.txt"]),
    ],
)
def test_requirements_are_joined_without_headrace_itself(tmp_path, text, expected):
    (tmp_path / "requirements.txt").write_bytes(text)
    joined = host_files(tmp_path)[Path("requirements.txt")].decode().splitlines()
    assert joined[: len(expected)] == expected and "grpcio" in joined[len(expected) :]


@pytest.mark.parametrize("text", ["tqdm".encode("utf-16"), b"tqdm==1 --hash=sha256:00"])
def test_requirements_that_cannot_be_joined_are_refused(tmp_path, text):
    (tmp_path / "requirements.txt").write_bytes(text)
    with pytest.raises(InputError, match=r"requirements\.txt"):
        host_files(tmp_path)


@pytest.mark.parametrize(
    "line",
    ["tqdm==1", "protobuf<4", 'keras==2.15; python_version < "3.9"', "-r a.txt", "not a line"],
)
def test_versions_are_left_to_pip(tmp_path, line):
    (tmp_path / "requirements.txt").write_text(line)
    assert line in files_to_send(tmp_path)[Path("requirements.txt")].decode()


def test_a_checkouts_own_source_dir_tells_hosts_only_of_versions_that_must_agree():
    told = host_files(CODE)[Path("constraints.txt")].decode()
    assert "tensorflow==" in told and "numpy" not in told and "pytest" not in told


@pytest.mark.parametrize("file", ["wave.py", "profile.py", "test/__init__.py", "random/data.csv"])
def test_a_file_may_have_the_name_of_a_module_of_python(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    refuse_shadows(tmp_path, source_files(tmp_path))
    assert Path(file) in host_files(tmp_path)


@pytest.mark.parametrize("file", ["launcher.py", "train_data.py", "headrace/data.py"])
def test_a_file_that_would_replace_one_of_headraces_is_refused(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    with pytest.raises(InputError, match="rename it"):
        refuse_shadows(tmp_path, source_files(tmp_path))


def test_a_link_to_a_folder_of_many_files_is_refused_before_all_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.job.source.MAX_SOURCE_FILES", 5)
    write(tmp_path / "images", **{f"cats__{number}.jpg": "" for number in range(9)})
    write(tmp_path / "project", **{"train_dot_py": ""})
    (tmp_path / "project" / "data").symlink_to(tmp_path / "images")
    with pytest.raises(InputError, match=r"more than 5 files, 6 of them in data/cats; move data to a --channel"):
        source_files(tmp_path / "project")
