"""The frameworks of training scripts. One `Framework` object describes each framework to all other packages.

To add a framework, add a module here, an entry of `FRAMEWORKS`, a package beside `headrace.tensorflow` and
`headrace.torch`, and a data service.
"""

from __future__ import annotations

from headrace.frameworks.pytorch_jobs import PYTORCH as PYTORCH
from headrace.frameworks.tensorflow_jobs import TENSORFLOW as TENSORFLOW

DEFAULT = TENSORFLOW
FRAMEWORKS = {each.name: each for each in (TENSORFLOW, PYTORCH)}
