"""The installed TensorFlow has every private name that headrace uses, with the meaning that headrace expects."""

import keras
import tensorflow as tf
from headrace.tensorflow import compat


def double(number):
    return number * 2


def test_what_datasets_say_of_themselves():
    numbers = tf.data.Dataset.range(9)
    doubled = numbers.map(double)
    assert list(compat.inputs_of(doubled)) == [numbers]
    (function,) = compat.functions_of(doubled)
    assert compat.name_of_function(function) == "double"
    assert "Mul" in {op.type for op in function.function.graph.get_operations()}
    given = {
        "count": doubled.take(3),
        "batch_size": doubled.batch(3),
        "buffer_size": doubled.shuffle(3),
        "cycle_length": numbers.interleave(tf.data.Dataset.range, 3),
    }
    assert {name: int(compat.argument_of(dataset, name)) for name, dataset in given.items()} == dict.fromkeys(given, 3)
    assert compat.argument_of(numbers, "batch_size") is None


def test_graphs_of_datasets_and_of_functions():
    graph = compat.GraphDef.FromString(compat.graph_of(tf.data.Dataset.range(3).batch(2)))
    assert "RangeDataset" in {node.op for node in graph.node}
    again = tf.data.experimental.from_variant(compat.variant_of(tf.data.Dataset.range(3)), tf.TensorSpec([], tf.int64))
    assert list(again.as_numpy_iterator()) == [0, 1, 2]
    outer = tf.function(lambda x: tf.function(double)(x) + 1).get_concrete_function(tf.TensorSpec([])).graph
    (call,) = (op for op in outer.get_operations() if "PartitionedCall" in op.type)
    assert "Mul" in {op.type for op in compat.function_in(outer, call.get_attr("f").name).get_operations()}
    assert [each.name for each in compat.arguments_of("BatchDatasetV2")] == [
        "input_dataset",
        "batch_size",
        "drop_remainder",
    ]
    assert compat.OptionsProto.FromString(b"").WhichOneof("optional_deterministic") is None


def test_structures_and_types():
    assert len(compat.data_nest.flatten(([1, 2], 3))) == 2, "a list is a tensor"

    class Pair(tf.experimental.ExtensionType):
        first: tf.Tensor

    assert isinstance(Pair.Spec(tf.TensorSpec([])), compat.ExtensionTypeSpec)
    assert callable(compat.registered_dataset)


def test_hooks_and_layers_of_keras():
    for owner, name in compat.OVERRIDDEN:
        assert callable(getattr(owner, name)), f"{owner.__name__} has no {name} to override"
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model = keras.Sequential([keras.Input((2,)), inner, keras.layers.ReLU()])
    assert {type(each).__name__ for each in compat.layers_of(model)} >= {"Sequential", "Dense", "ReLU"}
