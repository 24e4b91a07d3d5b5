"""Build a site in build/site from README, docs/ and notebooks/ (`make site`). A broken link is an error."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "site-pages"
NAMES = {"walkthrough": "walkthrough", "pytorch": "walkthrough-pytorch"}
"""Name of each notebook's page on the site."""


def main() -> int:
    gather()
    build = [sys.executable, "-m", "mkdocs", "build"]
    built = subprocess.run(
        build,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(built.stdout if built.returncode else f"site: {ROOT / 'build' / 'site' / 'index.html'}")
    return built.returncode


def gather() -> None:
    """Copy all pages into one folder, and change the links between them accordingly."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name, page in {
        "README.md": "index.md",
        "CONTRIBUTING.md": "CONTRIBUTING.md",
        "CHANGELOG.md": "CHANGELOG.md",
    }.items():
        (PAGES / page).write_text((ROOT / name).read_text(encoding="utf-8").replace("](docs/", "]("), encoding="utf-8")
    for name, page in NAMES.items():
        write_notebook(ROOT / "notebooks" / f"{name}.ipynb", page)
    for path in PAGES.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        for name, page in NAMES.items():
            text = re.sub(rf"\]\((\.\./)?notebooks/{name}\.ipynb\)", f"]({page}.md)", text)
        path.write_text(text, encoding="utf-8")


def write_notebook(path: Path, page: str) -> None:
    """Convert a notebook, with its stored outputs, to a page. Write the notebook's pictures beside the page."""
    text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    pictures = resources.get("outputs") or {}
    for name, content in pictures.items():
        (PAGES / f"{page}-{name}").write_bytes(content)
        text = text.replace(f"({name})", f"({page}-{name})")
    (PAGES / f"{page}.md").write_text(text.replace("](../docs/", "]("), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
