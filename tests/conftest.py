"""Let tests import `tests.support` however pytest is started, and set what must be set before other imports."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# grpc's fork handlers must not run in children that call exec at once. The launcher sets this too before it loads grpc.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("LEAN_KERAS", "1")  # tests/lean/sitecustomize.py
sys.path.insert(0, str(Path(__file__).parents[1]))

# A machine with other work is slow at times. That is no failure of a test.
settings.register_profile(
    "headrace", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")
