"""The project's documents, their code blocks, and the commands that readers type."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command in a document. `words` leaves out redirections and pipes."""

    where: str
    text: str
    words: tuple[str, ...]

    @property
    def flags(self) -> set[str]:
        return {word.partition("=")[0] for word in self.words if word.startswith("--")}

    def after(self, *names: str) -> tuple[str, ...] | None:
        """Return the arguments of the first program in `names` that the command calls; None if it calls none."""
        for index, word in enumerate(self.words):
            if word.rpartition("/")[2] in names:
                return self.words[index + 1 :]
        return None


def fences(text: str, language: str, label: str | None = None) -> list[str]:
    """Return the contents of the code blocks in a language, or only of those with `label`."""
    found = _FENCE.findall(text)
    return [body for lang, named, body in found if lang == language and label in (None, named)]


def console_lines(text: str) -> list[str]:
    """Return the commands after `$ ` in the console blocks. Continued lines are joined."""
    joined = "".join(fences(text, "console")).replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def commands_of(document: Path) -> list[Command]:
    """Return a document's commands. A shell array (`job=(…)`) adds its words to each command that uses it."""
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
