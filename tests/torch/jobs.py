"""Constants for tests of whole PyTorch jobs."""

from pathlib import Path

import pytest

from tests.support import namespaces_allowed

SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "--framework=pytorch"
needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no namespaces")
