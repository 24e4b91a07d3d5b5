"""No part of headrace has more lines than its limit. If code shrinks, lower the limit. To raise it, write an ADR."""

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "code" / "headrace"
MOST_LINES = {
    "torch": 4_500,  # ADR 30
    "tensorflow": 6_000,  # ADR 33 and 35
    "lint": 880,
    "backends/slurm": 470,
    "the rest": 14_620,  # ADR 35
}


def part_of(path):
    name = path.relative_to(PACKAGE).as_posix()
    return next((part for part in MOST_LINES if name.startswith(f"{part}/")), "the rest")


@pytest.mark.parametrize("part", MOST_LINES)
def test_a_part_stays_as_small_as_it_is(part):
    lines = sum(len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py") if part_of(path) == part)
    assert 0.97 * MOST_LINES[part] <= lines <= MOST_LINES[part], f"{part} has {lines} lines"
