"""Documents and code avoid words that readers had to read twice. `INSTEAD` names a plain alternative for each word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"strangers?": "unauthenticated client",
    r"mend(s|ed|ing)?": "fix",
    r"(do|does|done|doing|did) without (it|a host|hosts|the host)": "continue without",
    r"goodbyes?": "leaves without notice",
    r"untold": "not reported",
    r"front door": "entry point, start",
    r"the rooms?": "package",
    r"bear with": "wait for",
    r"nobody's|everybody's": "say whose",
    r"utils|helpers?|misc(?!,)|(?<!context )manager": "say what it holds",
    r"master(?!=)|slave": "leader",
    r"whilst|hence|thereof|therein|henceforth|notwithstanding": "a plainer word",
    r"anew|so many(?! that)": "again; this many",
    r"simply|obviously|of course|just works": "leave it out",
}
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "code/**/*.py",
        "code/**/*.h",
        "code/**/*.cc",
        "tools/*.py",
        "bench/**/*.py",
    )
    for path in ROOT.glob(pattern)
    if "__pycache__" not in path.parts and path.name != "CHANGELOG.md"
)


@pytest.mark.parametrize("word", INSTEAD)
def test_a_plainer_word_is_used(word):
    pattern = re.compile(rf"(?<![\w`_.-])({word})(?![\w`_-])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: {INSTEAD[word]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert not found, "\n" + "\n".join(found)
