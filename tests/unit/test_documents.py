"""Documents name only links, files, flags, targets, messages and prices that exist."""

import ast
import contextlib
import csv
import re

import pytest
from headrace import __main__ as headrace
from headrace.backends.slurm.slurm_options import add_flags
from headrace.cli import flags

from tests.documents import DOCUMENTS, commands_of, fences
from tests.support import ROOT

PLACES = ("code/", "docs/", "tests/", "bench/", "tools/", "docker/", "third_party/", "notebooks/")
IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
ALL = [command for path in DOCUMENTS for command in commands_of(path)]


def anchors(text):
    """Return the anchors that GitHub and the site make from a document's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_link_leads_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert target.exists() and target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=str)
def test_every_file_that_is_named_exists(document):
    for name in re.findall(r"`([\w./-]+)`", document.read_text(encoding="utf-8")):
        if name.startswith(PLACES) and "NAME" not in name:
            assert (ROOT / name).exists() or name.startswith("bench/out"), name


@pytest.mark.parametrize("command", ALL, ids=lambda command: f"{command.where}: {command.text[:60]}")
def test_a_command_has_only_flags_that_exist(command, capsys):
    if targets := command.after("make"):
        made = (ROOT / "Makefile").read_text()
        for target in targets:
            assert "=" in target or re.search(rf"^[\w -]*\b{target}\b[\w -]*:", made, re.MULTILINE), target
    words = command.after("start_job.py")
    name, *rest = ["start", *words] if words is not None else command.after("headrace") or [""]
    place = {"start": flags.ANYWHERE, "preflight": flags.ANYWHERE, "run": flags.HERE, "submit": flags.SAGEMAKER}.get(
        name
    )
    if place:
        rest = [word for word in rest if word not in ("...", "…", "--yes")]
        if rest[:2] == ["--to", "slurm"]:
            parser = flags.build_parser(place=flags.SLURM)
            add_flags(parser)
            parser.parse_args(rest[2:])
        else:
            flags.build_parser(place=place).parse_args(rest)
    elif name and not name.startswith("-"):
        with contextlib.suppress(SystemExit):
            assert headrace.main([name, "--help"]) == 0
        known = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", capsys.readouterr().out))
        assert command.flags <= known, command.text


def test_documents_have_commands():
    assert len(ALL) > 60


def said_in_code():
    """Yield every text in the code, with … in place of values that are filled in."""
    for path in [*(ROOT / "code").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"\{\}", "…", node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)


def test_the_messages_that_troubleshooting_explains_are_ours():
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    others = ("argparse's", "absl's", "Keras's", "NCCL's")  # messages of libraries
    messages = [
        text for row in rows if not any(each in row for each in others) for text in re.findall(r"`([^`]+)`", row)
    ]
    messages = [text for text in messages if text not in ("report", "plan")]
    assert len(messages) > 20
    texts = list(said_in_code())
    for message in messages:
        parts = re.split("…", message.removeprefix("event="))
        pattern = ".*".join(re.escape(part) for part in parts)
        assert any(re.search(pattern, text) for text in texts), message


def test_the_prices_in_the_guide_are_those_of_the_table():
    lines = (ROOT / "code/headrace/job/instances.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    prices = {row["instance_type"]: float(row["usd_per_hour"]) for row in rows if row["usd_per_hour"]}
    trainer, both = prices["ml.p4d.24xlarge"], prices["ml.p4d.24xlarge"] + 2 * prices["ml.c5.18xlarge"]
    guide = (ROOT / "docs" / "instances.md").read_text()
    for told in (f"| {trainer:.3f} USD | 1 |", f"| {both:.3f} USD | {both / trainer:.2f} |"):
        assert told in guide, told
    assert f"at least {1 - trainer / both:.0%}".replace("%", " %") in guide


def test_the_picture_is_the_same_wherever_it_is_shown():
    pictures = {fences((ROOT / name).read_text(), "")[0] for name in ("README.md", "docs/how-it-works.md")}
    assert len(pictures) == 1 and "dispatcher :6000" in pictures.pop()
