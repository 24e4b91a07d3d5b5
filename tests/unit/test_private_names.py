"""Only the modules in `OWNERS` use private names of TensorFlow and Keras. New versions may need changes there."""

import re

from tests.support import ROOT

PACKAGES = [ROOT / "code" / "headrace" / name for name in ("tensorflow", "lint")]
PRIVATE = re.compile(
    r"tensorflow\.(python|core)\b|keras\.src\b|\._(variant_tensor|as_serialized_graph|from_dataset_id|inputs\(|functions\(|func\b"
    r"|get_function|handle_data|buffer_size|cycle_length|flatten_layers)|_OptionalImpl"
)
OWNERS = {
    "tensorflow/compat.py",
    # Without TensorFlow's Python, a server starts in half a second.
    "tensorflow/service/pywrap_servers.py",
}


def test_no_other_module_has_private_names():
    found = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            name = str(path.relative_to(package.parent))
            if name not in OWNERS and (private := PRIVATE.search(path.read_text())):
                found[name] = private[0]
    assert found == {}
