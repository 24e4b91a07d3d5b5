"""Check a request offline against botocore's model of SageMaker: types, lengths, ranges, choices, patterns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, Shape
from botocore.validate import ParamValidator

from headrace.errors import InputError

_NOT_OURS = ("ml.trn", "ml.p6e-gb")
"""Prefixes of unsupported instance types: Trainium needs AWS's Neuron, and Grace hosts have ARM processors."""


def check_request(request: Mapping[str, Any]) -> None:
    """Raise `InputError` if SageMaker would refuse the request."""
    shape = _operation().input_shape
    report = ParamValidator().validate(dict(request), shape)
    if report.has_errors():
        raise InputError(f"SageMaker would refuse this job: {' '.join(report.generate_report().split())}")
    for path, value, problem in _beyond_types(request, shape, ""):
        raise InputError(f"SageMaker would refuse this job: {path} is {value!r}; {problem}")


def check_instance_type(name: str) -> None:
    """Raise `InputError` if SageMaker has no such training instance type, or headrace has no image for it."""
    known = _operation().service_model.shape_for("TrainingInstanceType").enum
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise InputError(
            f"{name!r} is no instance type that SageMaker trains on" + (f"; did you mean {close[0]}?" if close else "")
        )
    if name.startswith(_NOT_OURS):
        raise InputError(f"{name} needs a special image (Trainium or ARM), which headrace lacks; choose another type")


def _beyond_types(value: Any, shape: Shape, path: str) -> Iterator[tuple[str, Any, str]]:
    """Check what botocore does not: maxima, choices and patterns. Yield path, value and problem for each mistake."""
    most = shape.metadata.get("max")
    size = value if isinstance(value, (int, float)) else len(value)
    if most is not None and size > most:
        yield path, value if isinstance(value, int) else f"{str(value)[:40]} …", f"size {size}; expected at most {most}"
    if shape.type_name == "structure":
        for name, each in value.items():
            yield from _beyond_types(each, shape.members[name], f"{path}.{name}".lstrip("."))
    elif shape.type_name == "list":
        for index, each in enumerate(value):
            yield from _beyond_types(each, shape.member, f"{path}[{index}]")
    elif shape.type_name == "map":
        for name, each in value.items():
            yield from _beyond_types(name, shape.key, f"{path} key")
            yield from _beyond_types(each, shape.value, f"{path}.{name}")
    elif shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            yield path, value, f"expected one of {', '.join(list(shape.enum)[:8])}{' …' if len(shape.enum) > 8 else ''}"
        pattern = shape.metadata.get("pattern")
        if pattern and not _matches(pattern, value):
            yield path, value, f"it must match {pattern}"


def _matches(pattern: str, value: str) -> bool:
    # Python's `re` does not support Unicode classes such as \p{L}. Replace them by wider classes.
    for unicode_class, members in ((r"\p{L}", r"\w"), (r"\p{Z}", r"\s"), (r"\p{N}", r"\d")):
        pattern = pattern.replace(unicode_class, members)
    try:
        return re.fullmatch(pattern, value, re.DOTALL) is not None
    except re.error:
        return True  # a pattern that Python does not support; the service decides


@cache
def _operation() -> OperationModel:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob")
