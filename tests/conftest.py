"""Makes `tests.support` importable however pytest is started, and settles what must be settled before imports."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# As the launcher does before it loads grpc, whose fork handlers must not run in children that are exec'd at once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

# Machines that do other things too are slow at times, which is no finding.
settings.register_profile(
    "headrace", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")
