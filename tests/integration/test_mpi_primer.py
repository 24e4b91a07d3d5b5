"""Each snippet of docs/mpi.md does on four ranks what the page says."""

import re

import pytest

from tests.integration.test_horovod import mpirun
from tests.support import ROOT

SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "mpi.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_on_four_ranks(number, tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPETS[number] + "\nprint('done')\n")
    done = mpirun(tmp_path / "snippet.py", tmp_path, ranks=4)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count("done") == 4
    if "local rank" in SNIPPETS[number]:
        assert sorted(re.findall(r"rank \d of 4, local rank \d of 4", done.stdout)) == [
            f"rank {rank} of 4, local rank {rank} of 4" for rank in range(4)
        ]


def test_the_page_has_its_snippets():
    assert len(SNIPPETS) == 5
