"""Whole jobs whose training script needs nothing but MPI, or not even that: what the launcher does for any script."""

import os

from tests.support import finish, start

HELLO = """
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size, flush=True)
"""


def run_script(tmp_path, text, *flags, **popen):
    """A job of one host with two ranks, unless the flags say otherwise."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train_dnn.py").write_text(text)
    return finish(*start(tmp_path, f"--source_dir={source}", "--no-is_hetero", *flags, **popen))


def test_a_host_without_ssh_and_rsh_trains(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):  # what comes first on PATH takes the place of what comes later
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.name not in ("ssh", "rsh"):
                (programs / entry.name).unlink(missing_ok=True)
                (programs / entry.name).symlink_to(entry.path)
    run = run_script(tmp_path, HELLO, env=os.environ | {"PATH": str(programs)})
    assert run.code == 0, run.output
    assert run.output.count("of 2") == 2
