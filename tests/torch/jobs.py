"""What whole PyTorch jobs of the tests have in common."""

from pathlib import Path

import pytest

from tests.support import namespaces_allowed

SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "--framework=pytorch"
needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no namespaces")
