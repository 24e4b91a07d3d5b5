"""The code in docs/pytorch.md runs as it is."""

import inspect
import re
import subprocess
import sys

import headrace.torch
import torch
from headrace.cli import flags

from tests.documents import fences
from tests.support import JOB_TIMEOUT_S, ROOT, run_job
from tests.torch.jobs import TORCH

PAGE = (ROOT / "docs" / "pytorch.md").read_text()
USE_OF_EXAMPLES = """
assert sums[1] >= len(data) * 8 * 0.9 and abs(mean) < 1
for epoch, columns in ((0, 4), (5, 8)):
    growing = headrace.torch.DataLoader(Growing(*data.tensors), 16, name=f"growing {epoch}")
    growing.set_epoch(epoch)
    assert {x.shape[1] for x in growing} == {columns}
assert sum(len(x) for x in loader_of_sizes) == 256 // headrace.torch.world_size()
for epoch in range(2):
    assert sum(len(x) for x, y in loader_of(epoch)) == 256 // headrace.torch.world_size()
with open("records", "wb") as file:
    file.write(bytes(16))
assert Records()[3] == bytes(4)
"""


def blocks():
    """Return the page's Python code: the script, a list of examples, and the example of an IterableDataset."""
    script, *examples, stream = fences(PAGE, "python")
    return script, examples, stream


def run_with_a_data_host(tmp_path, script):
    flags = [TORCH, "--num_of_data_instances=1", f"--source_dir={script.parent}", f"--training_script={script.name}"]
    run = run_job(tmp_path, *flags)
    assert run.code == 0, run.output[-4000:]
    assert run.events("feed_ready")
    return run


def test_the_pages_script_runs_alone_and_with_all_examples_as_a_job(tmp_path):
    script = tmp_path / "project" / "page.py"
    script.parent.mkdir()
    script.write_text(blocks()[0])
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, timeout=JOB_TIMEOUT_S)
    before, start, after = blocks()[0].partition("training = ")
    script.write_text(before + "\n".join(blocks()[1]) + USE_OF_EXAMPLES + start + after)
    assert run_with_a_data_host(tmp_path, script).output.count("here a tracker starts") == 2  # once on each rank


def test_the_pages_iterable_dataset_is_shared_by_workers(tmp_path):
    found = {"torch": torch}
    exec(blocks()[2], found)
    files = [tmp_path / str(number) for number in range(5)]
    for number, path in enumerate(files):
        path.write_text(f"{number}\n" * 3)
    for workers in (0, 2):
        loader = headrace.torch.DataLoader(found["Lines"](files), None, num_workers=workers)
        assert sorted(loader) == [f"{number}\n" for number in range(5) for _ in range(3)]


def test_the_pages_contract_is_the_loaders():
    contract = re.search(r"## The contract\n.*?\n(1\. .*?)\n\n", PAGE, re.DOTALL)[1]
    docstring = inspect.getdoc(headrace.torch.DataLoader)
    for number in range(1, 11):
        (point,) = re.findall(rf"^{number}\. (.*?)(?:\n{number + 1}\. |\Z)", contract, re.DOTALL | re.MULTILINE)
        words = point.replace("*", "").split()
        assert " ".join(words) in " ".join(docstring.split()), point


def test_the_page_is_short():
    assert len(PAGE.split()) <= 1500


def test_a_script_with_the_guides_diff_trains_with_a_data_host(tmp_path):
    guide = (ROOT / "docs" / "own-script.md").read_text()
    (script,), (diff,) = fences(guide, "python", "torch"), fences(guide, "diff", "torch")
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(script)
    subprocess.run(
        ["patch", "-p0", "--fuzz=0"], cwd=project, input=f"--- train.py\n+++ train.py\n{diff}", text=True, check=True
    )
    run_with_a_data_host(tmp_path, project / "train.py")


def test_the_pages_flags_exist():
    parser = flags.build_parser()
    known = {option for action in parser._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", PAGE)) <= known
