"""Importing and initializing headrace changes nothing in TensorFlow, Keras and Horovod."""

import json
import subprocess
import sys
import textwrap

from tests.support import ROOT

LOOK = textwrap.dedent(
    """
    import json, sys, types

    def attributes():
        found = {}
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("tensorflow", "keras", "horovod") and isinstance(module, types.ModuleType):
                for each, value in list(vars(module).items()):
                    if isinstance(value, type) and value.__module__ == name:
                        for attribute, member in list(vars(value).items()):
                            found[f"{name}.{value.__qualname__}.{attribute}"] = member
                    elif isinstance(value, types.FunctionType) and value.__module__ == name:
                        found[f"{name}.{each}"] = value
        return found

    import horovod.tensorflow, keras, tensorflow
    from tensorflow.python.data.ops import iterator_ops
    tensorflow.data.Dataset.from_tensor_slices([1]).batch(1).map(lambda x: x).shuffle(2).repeat()  # loads what is lazy
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    before = attributes()
    import headrace.tensorflow.data, headrace.tensorflow.callbacks
    import headrace.tensorflow.horovod_keras as hvd
    hvd.init()
    hvd.DistributedOptimizer("adam")
    after = attributes()
    changed = [name for name in before if after.get(name) is not before[name]]
    owners = {name.rpartition(".")[0] for name in before}
    added = [name for name in after if name not in before and name.rpartition(".")[0] in owners
             and name.rpartition(".")[0] not in sys.modules]
    internal = ("__abstractmethods__", "_abc_impl", "__slotnames__", "__annotations__", "_tf_decorator")
    print(json.dumps(sorted(each for each in changed + added if not each.endswith(internal))))
    """
)


def test_nothing_of_tensorflow_keras_or_horovod_is_another_after_headrace_is_imported():
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert looked.returncode == 0, looked.stderr[-3000:]
    assert json.loads(looked.stdout.splitlines()[-1]) == []
