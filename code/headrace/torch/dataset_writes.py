"""What a dataset changes of itself while it makes a sample, or in `set_epoch`: caches, counters, what it opens.

Read from the source of its methods; where there is none, from their bytecode, which tells less apart.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
from typing import Any, TypeGuard

from torch.utils.data import Dataset

from headrace.torch.dataset_code import CALLED, LOADS, SAMPLES, instructions, reached
from headrace.torch.method_writes import FILLING, Method, function_tree


@functools.cache
def written_while_training(kind: type) -> frozenset[str]:
    """Attributes of this class's objects that their own methods may change while they make samples.

    `set_epoch` is called on datasets where samples are made, and on nothing else.
    """
    told = ("set_epoch",) if issubclass(kind, Dataset) or hasattr(kind, "__getitem__") else ()
    return frozenset(name for method in reached(kind, (*SAMPLES, *CALLED, *told)) for name in _written_by(method, kind))


@functools.cache
def kept_by_properties(kind: type) -> frozenset[str]:
    """Attributes that `cached_property` fills, wherever they are read first: they follow from others."""
    held = (pair for each in kind.__mro__ for pair in vars(each).items())
    return frozenset(name for name, each in held if isinstance(each, functools.cached_property))


@functools.cache
def written_by_set_epoch(kind: type) -> frozenset[str]:
    """Attributes of this class's objects that their `set_epoch` may change."""
    return frozenset(name for method in reached(kind, ("set_epoch",)) for name in _written_by(method, kind))


@functools.cache
def counted_by_set_epoch(kind: type) -> frozenset[str]:
    """Those that it adds to (`self.level += 1`), and that samples are made of."""
    read = {str(step.argval) for method in reached(kind, SAMPLES) for step in instructions(method.__code__)}
    nodes = (node for method in reached(kind, ("set_epoch",)) for node in ast.walk(_source(method.__code__)))
    added = {
        node.target.attr for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
    }
    return frozenset(added & read)


@functools.cache
def counted_by_samples(kind: type) -> frozenset[str]:
    """Attributes that making a sample adds to (`self.position += 1`), and makes it of: others in each process."""
    trees = [_Told().visit(copy.deepcopy(_source(each.__code__))) for each in reached(kind, (*SAMPLES, *CALLED))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    added = {node.target.attr for node in nodes if isinstance(node, ast.AugAssign) and _is_own(node.target)}
    read = {node.attr for node in nodes if _is_own(node) and isinstance(node.ctx, ast.Load)}
    targets = [each for node in nodes if isinstance(node, ast.Assign) for to in node.targets for each in ast.walk(to)]
    begun = {each.attr for each in targets if _is_own(each)}
    return frozenset(added & read - begun)


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


@functools.cache
def globals_written(code: types.CodeType) -> frozenset[str]:
    """Globals that a function changes, or what they hold: `CACHE`, and `Stats.calls`."""
    steps = list(instructions(code))
    found = {str(step.argval) for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for node in ast.walk(_source(code)):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            found |= {_dotted(node), _dotted(node.value)}
        elif isinstance(node, ast.AugAssign):
            found.add(_dotted(node.target))
        elif isinstance(node, ast.keyword) and node.arg == "out":  # `np.multiply(a, b, out=BUFFER)`
            found.add(_dotted(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
            if node.func.attr in FILLING or in_place:
                found.add(_dotted(node.func.value))
    return frozenset(found)


@functools.cache
def only_told(code: types.CodeType) -> frozenset[str]:
    """Names that a function uses for what it prints or counts alone: in calls of which it makes no use."""
    tree = _source(code)
    return frozenset(_names(tree) - _names(_Told().visit(copy.deepcopy(tree))))


@functools.cache
def names_used(code: types.CodeType) -> frozenset[str]:
    """Variables, attributes and keys that a function uses for more than to print them; without its source all."""
    tree = _Told().visit(copy.deepcopy(_source(code)))
    found = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)} | _names(tree)
    found |= {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return frozenset(found or {str(step.argval) for step in instructions(code)})


def _names(tree: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


class _Told(ast.NodeTransformer):
    """Takes statements away that make no sample."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        in_place = isinstance(node.value, ast.Call) and getattr(node.value.func, "attr", "").endswith("_")
        return None if isinstance(node.value, ast.Call) and not in_place else node

    def visit_If(self, node: ast.If) -> Any:
        made = self.generic_visit(node)
        assert isinstance(made, ast.If)
        return made if made.body or made.orelse else None


def _dotted(node: ast.expr) -> str:
    """`a.b` of `a.b`, `a.b[0]` and `a.b[0].c`."""
    names: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


@functools.cache
def _source(code: types.CodeType) -> ast.AST:
    """Empty where there is none, and of a lambda, which writes nothing."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except Exception:  # whatever Python's readers of sources make of it
        return ast.Module([], [])


def _written_by(method: types.FunctionType, kind: type) -> set[str]:
    tree = function_tree(method)
    return Method(tree, kind).written() if tree and tree.args.args else _as_bytecode_tells(method)


def _as_bytecode_tells(method: types.FunctionType) -> set[str]:
    steps = list(instructions(method.__code__))
    loaded = {str(step.argval) for step in steps if step.opname in LOADS}
    fills = loaded & FILLING or any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps)
    return {str(step.argval) for step in steps if step.opname == "STORE_ATTR"} | (loaded if fills else set())
