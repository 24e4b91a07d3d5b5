"""What one method of a dataset changes of its object, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping

from headrace.torch.dataset_code import function_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
FILLING = {"append", "add", "setdefault", "update", "extend", "insert", "pop", "popitem", "move_to_end", "put",
           "clear", "remove", "discard", "sort", "reverse", "appendleft", "popleft", "fill"}  # fmt: skip
"""Methods of containers that change them."""
_INSIDE = {"get", "setdefault"}
"""Methods that hand out what a container holds."""
_FILLING_ARGUMENTS = {"shuffle", "heappush", "heappop", "copyto", "insort"}
_GIVEN = "what it was given"
"""Stands for no attribute: no name has spaces."""
_DEEPEST = 4


def function_tree(function: types.FunctionType) -> Function | None:
    """Its source, parsed; None where there is none, and of a lambda."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except Exception:  # whatever Python's readers of sources make of it
        return None
    return tree if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


class Method:
    """One method's source.

    Args:
        kind: of its objects.
        given: what its own parameters stand for, by their names.
        depth: how many of the class's methods have called it with what they were given.
    """

    def __init__(self, function: Function, kind: type, given: Mapping[str, str] | None = None, depth: int = 0) -> None:
        self._function, self._own = function, function.args.args[0].arg if function.args.args else ""
        self._kind, self._depth = kind, depth
        self._aliases: dict[str, str] = dict(given or {})
        """Local names for what an attribute holds, or for something inside it."""
        for _ in range(2):  # a name for a name
            for target, value in self._assigned():
                if isinstance(target, ast.Name) and (of := self._attribute(value)):
                    self._aliases[target.id] = of

    def written(self) -> set[str]:
        """Names of attributes."""
        found: set[str | None] = set()
        for node in ast.walk(self._function):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found |= {node.attr, self._attribute(node.value)}
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found.add(self._attribute(node.value))
            elif isinstance(node, ast.AugAssign):
                found.add(self._attribute(node.target))
            elif isinstance(node, ast.Call):
                found |= set(self._filled_by(node))
        return {name for name in found if name}

    def _filled_by(self, call: ast.Call) -> Iterator[str | None]:
        yield from (self._attribute(each.value) for each in call.keywords if each.arg == "out")
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if isinstance(call.func, ast.Attribute):
            in_place = name.endswith("_") and not name.endswith("__")  # torch's
            if name in FILLING or in_place or self._function.name == "set_epoch":  # there it is told of the epoch
                yield self._attribute(call.func.value)
        of_its_own = isinstance(call.func, ast.Attribute) and self._is_own(call.func.value)
        for place, each in enumerate(call.args):
            attribute = self._attribute(each) if isinstance(each, (ast.Attribute, ast.Name)) else None
            if attribute and (name in _FILLING_ARGUMENTS or (of_its_own and self._fills(name, place))):
                yield attribute
        if name == "setattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            yield str(call.args[1].value)

    def _fills(self, name: str, place: int) -> bool:
        """Whether another method of the class may change what it is given in this place."""
        held = inspect.getattr_static(self._kind, name, None)
        function = function_of(held)
        tree = function_tree(function) if function and self._depth < _DEEPEST else None
        if tree is None:
            return True
        names = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)][not isinstance(held, staticmethod) :]
        return (
            place >= len(names) or _GIVEN in Method(tree, self._kind, {names[place]: _GIVEN}, self._depth + 1).written()
        )

    def _assigned(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in ast.walk(self._function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        yield from zip(target.elts, node.value.elts, strict=False)  # one may be starred
                    else:
                        yield target, node.value
            elif isinstance(node, (ast.For, ast.comprehension)):
                yield node.target, node.iter
            elif isinstance(node, (ast.NamedExpr, ast.AnnAssign)) and node.value:
                yield node.target, node.value
            elif isinstance(node, ast.withitem) and node.optional_vars:
                yield node.optional_vars, node.context_expr

    def _attribute(self, value: ast.expr) -> str | None:
        """The attribute of the dataset's own that this is, or is inside of."""
        while True:
            if isinstance(value, ast.Attribute):
                if self._is_own(value.value):
                    return value.attr
                value = value.value
            elif isinstance(value, ast.Subscript):
                value = value.value
            elif isinstance(value, ast.Call) and getattr(value.func, "attr", "") in _INSIDE:
                value = value.func
            else:
                return self._aliases.get(value.id) if isinstance(value, ast.Name) else None

    def _is_own(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and value.id == self._own
