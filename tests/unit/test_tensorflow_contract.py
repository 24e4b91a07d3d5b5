"""The contract of headrace.tensorflow is the same text in the docstring and in the documentation."""

import ast
import re

from tests.support import ROOT

POINT = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^\n|\Z)", re.DOTALL | re.MULTILINE)


def points_of(text):
    return {int(number): " ".join(point.split()) for number, point in POINT.findall(text)}


def test_the_page_and_the_docstring_have_the_same_ten_points():
    module = ast.parse((ROOT / "code" / "headrace" / "tensorflow" / "data.py").read_text())
    (distribute,) = (each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == "distribute")
    page = (
        (ROOT / "docs" / "own-script.md").read_text().partition("## The contract (TensorFlow)")[2].partition("\n## ")[0]
    )
    said = points_of(ast.get_docstring(distribute))
    assert sorted(said) == list(range(1, 11))
    assert points_of(page) == said
