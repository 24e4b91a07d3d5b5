"""Checks a request against botocore's own model of SageMaker, offline: types, lengths, ranges, choices, patterns."""

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
"""Trainium wants AWS's Neuron; Grace hosts have ARM processors, as Graviton's have."""


def check_request(request: Mapping[str, Any]) -> None:
    """Raises `InputError` when SageMaker's interface would refuse the request."""
    shape = _operation().input_shape
    report = ParamValidator().validate(dict(request), shape)
    if report.has_errors():
        raise InputError(f"SageMaker would refuse this job: {' '.join(report.generate_report().split())}")
    for path, value, problem in _beyond_types(request, shape, ""):
        raise InputError(f"SageMaker would refuse this job: {path} is {value!r}; {problem}")
    named: dict[bool, str] = {}
    for channel in request.get("InputDataConfig", []):
        named["InstanceGroupNames" in channel["DataSource"].get("S3DataSource", {})] = channel["ChannelName"]
    if len(named) > 1:  # aws/sagemaker-python-sdk#5225
        raise InputError(
            f"SageMaker would refuse this job: channel {named[True]!r} names instance groups and {named[False]!r} does "
            "not; let all channels name theirs, or none"
        )


def check_instance_type(name: str) -> None:
    """Raises `InputError` when SageMaker trains on no such instance type, or neither framework does."""
    known = _operation().service_model.shape_for("TrainingInstanceType").enum
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise InputError(
            f"{name!r} is no instance type that SageMaker trains on" + (f"; did you mean {close[0]}?" if close else "")
        )
    if name.startswith(_NOT_OURS):
        raise InputError(f"{name} needs images of its own (Trainium, or ARM processors); headrace has none for it")


def _beyond_types(value: Any, shape: Shape, path: str) -> Iterator[tuple[str, Any, str]]:
    """What botocore leaves to the service: upper limits, enumerations and patterns."""
    most = shape.metadata.get("max")
    size = value if isinstance(value, (int, float)) else len(value)
    if most is not None and size > most:
        yield path, value if isinstance(value, int) else f"{str(value)[:40]} …", f"its size is {size}, at most {most}"
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
    try:
        return re.fullmatch(_python_pattern(pattern), value, re.DOTALL) is not None
    except re.error:
        return True  # a pattern in another dialect; the service decides


def _python_pattern(pattern: str) -> str:
    """Unicode classes as Python's `re` knows them; wide enough to refuse nothing that is right."""
    for unicode_class, members in ((r"\p{L}", r"\w"), (r"\p{Z}", r"\s"), (r"\p{N}", r"\d")):
        pattern = pattern.replace(unicode_class, members)
    return pattern


@cache
def _operation() -> OperationModel:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob")
