"""What cannot be made on another host: found in a dataset's graph, before training."""

from __future__ import annotations

from headrace.errors import InputError
from headrace.tensorflow import origin
from headrace.tensorflow.distribution import Distribution
from headrace.tensorflow.graph import DatasetGraph

PYTHON_OPS = {
    "PyFunc": "tf.py_function or tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
    "GeneratorDataset": "Dataset.from_generator",
}


def refuse_python(graph: DatasetGraph) -> None:
    """Raises `InputError` for a dataset that calls into this process."""
    for node in graph.sink.subtree():
        name = next((PYTHON_OPS[op] for op in (node.definition.op, *sorted(node.function_ops)) if op in PYTHON_OPS), "")
        if name:
            raise InputError(
                f"{node.where}: {node.kind}: the dataset runs Python of this process ({name}), which workers on other "
                "hosts do not have: use TensorFlow operations, or write the data to TFRecords first and read those"
            )


def refuse_generator(graph: DatasetGraph) -> None:
    """Raises `InputError` for a Python generator that several ranks would share: what it gives each is not known."""
    for node in graph.sink.subtree():
        if "GeneratorDataset" in node.function_ops:
            raise InputError(
                f"{node.where}: from_generator: every rank runs the generator from its start, and would train on the "
                "same elements: have it leave out other ranks' (hvd.rank(), hvd.size()), and "
                "data.distribute(…, exact=False)"
            )


def refuse_endings(graph: DatasetGraph, endless: bool, how: Distribution) -> None:
    """Raises `InputError` for a dataset with an end where there must be none."""
    where = f"{graph.sink.where}: " if graph.sink.where != origin.UNKNOWN else ""
    if endless:
        return
    if how.coordinated or how.cross_trainer_cache:
        raise InputError(
            f"{where}coordinated reads and the cross-trainer cache need a dataset without end: "
            "add .repeat() before .batch()"
        )
    if how.sharding == "off" and how.exact:
        raise InputError(
            f"{where}sharding='off' has every worker make the whole dataset: with an end, each element would come once "
            "for every worker. Add .repeat() before .batch(), leave sharding at 'dynamic', or exact=False as it is"
        )
