"""If `LEAN_KERAS` is set, hide optional packages from Keras. Keras imports such packages if they are installed.

The imports take a third of the processor time of `import tensorflow`, in each of the tests' hundreds of processes.
Hosts that install only headrace[local] lack these packages too. A script can still import the packages, before or after
TensorFlow. The editable installation of a checkout puts this folder on the path. So every Python of that environment
imports this module as it starts.
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
