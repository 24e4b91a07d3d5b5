"""Run several scripts in one process on each rank, so that TensorFlow is imported only once.

test_horovod.py runs this script. Arguments: a folder, and the scripts. Each script gets a subfolder.
"""

import runpy
import sys
from pathlib import Path

folder, *scripts = map(Path, sys.argv[1:])
sys.path.insert(0, str(Path(__file__).parent))
for script in scripts:
    own = folder / script.stem / "checkpoints"
    own.mkdir(parents=True, exist_ok=True)
    sys.argv[1:] = [str(own)]
    runpy.run_path(str(Path(__file__).with_name(script.name)))
