"""Where a rank waits for others is told as a line of its script."""

import sys

from headrace.torch.waiting import place_in_script
from torch.utils import _pytree


def test_the_place_is_the_scripts_innermost_line_below_what_libraries_run():
    told = []

    def look(_):
        torchs = sys._getframe(1)
        told.append((torchs.f_code.co_filename, place_in_script(torchs)))

    _pytree.tree_map(look, [1])
    line = sys._getframe().f_lineno - 1
    assert "site-packages" in told[0][0]
    assert told[0][1] == f"test_waiting.py:{line}"


def test_of_a_thread_that_runs_no_script_no_place_is_told():
    assert place_in_script(None) == ""
