"""What documents hold: links, and commands as readers type them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command of a document: its words, without what redirects or pipes it."""

    where: str
    text: str
    words: tuple[str, ...]

    @property
    def flags(self) -> set[str]:
        return {word.partition("=")[0] for word in self.words if word.startswith("--")}

    def after(self, *names: str) -> tuple[str, ...] | None:
        """The words that follow the first of `names`, as a program's arguments; None where none of them is called."""
        for index, word in enumerate(self.words):
            if word.rpartition("/")[2] in names:
                return self.words[index + 1 :]
        return None


def fences(text: str, language: str, label: str | None = None) -> list[str]:
    """The contents of the blocks in a language, with a label where one is asked for."""
    found = _FENCE.findall(text)
    return [body for lang, named, body in found if lang == language and label in (None, named)]


def console_lines(text: str) -> list[str]:
    """Every `$ ` line of the console blocks, continued lines joined."""
    joined = "".join(fences(text, "console")).replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def commands_of(document: Path) -> list[Command]:
    """A document's commands. Arrays of the shell (`job=(…)`) count as words of each command that uses them."""
    found, arrays = [], {}
    for line in console_lines(document.read_text(encoding="utf-8")):
        if array := re.fullmatch(r"(\w+)=\((.*)\)", line):
            arrays[f"${{{array[1]}[@]}}"] = shlex.split(array[2])
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>()")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";|&<>()"):
                if words:
                    found.append(Command(document.name, line, tuple(words)))
                words = []
            else:
                words += arrays.get(word, [word])
    return found
