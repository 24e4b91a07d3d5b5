"""Let Keras start without the optional packages that it imports where they are installed, if `LEAN_KERAS` is set.

These are a third of the processor time of `import tensorflow`, in each of the hundreds of processes that tests start.
Hosts with headrace[local] alone do not have them either. Scripts can import them before or after TensorFlow. The
editable installation of a checkout puts this folder on the path, where every Python imports this module as it starts.
"""

import os
import sys

OPTIONAL = ("IPython", "matplotlib", "pandas", "sklearn")


class HiddenFromKeras:
    def find_spec(self, name, path=None, target=None):
        keras = getattr(sys.modules.get("keras"), "__spec__", None)
        if name in OPTIONAL and getattr(keras, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is hidden from Keras by LEAN_KERAS", name=name)


if os.environ.get("LEAN_KERAS"):
    sys.meta_path.insert(0, HiddenFromKeras())
