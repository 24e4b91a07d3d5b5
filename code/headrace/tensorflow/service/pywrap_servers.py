"""Start TensorFlow's own tf.data service servers without `import tensorflow`: in half a second instead of four.

A C++ extension module starts a dispatcher or a worker, and kernels in its shared library make the batches. So servers
do not need TensorFlow's Python code, which makes `import tensorflow` slow. This module imports the extension without
running the `__init__` of the packages above it. If that fails, it imports all of TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

from headrace.tensorflow.service import transfer

_LIBRARY = "tensorflow.python.data.experimental.service._pywrap_server_lib"
_CONFIGS = "tensorflow.core.protobuf.service_config_pb2"
_PACKAGES = (
    "tensorflow", "tensorflow.core", "tensorflow.core.protobuf", "tensorflow.core.framework",
    "tensorflow.python", "tensorflow.python.data", "tensorflow.python.data.experimental",
    "tensorflow.python.data.experimental.service",
)  # fmt: skip


def start_dispatcher(port: int, work_dir: Path) -> Any:
    """Start a fault-tolerant dispatcher and return it; its `num_workers()` counts registered workers."""
    library, configs = _load()
    config = configs.DispatcherConfig(port=port, protocol="grpc", fault_tolerant_mode=True, work_dir=str(work_dir))
    server = library.TF_DATA_NewDispatchServer(config.SerializeToString())
    server.start()
    return server


def start_worker(
    port: int,
    address: str,
    dispatcher: str,
    heartbeat_interval_ms: int,
    dispatcher_timeout_ms: int,
    transfer_address: str = "",
) -> Any:
    """Start a worker, and return it once the dispatcher has answered its registration.

    Args:
        transfer_address: `HOST:PORT` for batches by headrace's own protocol, beside gRPC. If empty, there is only gRPC.

    Raises:
        HeadraceError: the port of `transfer_address` is taken.
    """
    library, configs = _load()
    config = configs.WorkerConfig(
        port=port,
        protocol="grpc",
        dispatcher_address=dispatcher,
        worker_address=address,
        heartbeat_interval_ms=heartbeat_interval_ms,
        dispatcher_timeout_ms=dispatcher_timeout_ms,
        data_transfer_protocol=transfer.PROTOCOL if transfer_address else "",
        data_transfer_address=transfer_address,
        data_transfer_port=int(transfer_address.rpartition(":")[2] or 0),
    )
    server = library.TF_DATA_NewWorkerServer(config.SerializeToString())
    server.start()
    if transfer_address:
        transfer.check_server(transfer_address)
    return server


def _load() -> tuple[Any, Any]:
    """Return the extension module, and the module with the protocol buffers that configure servers."""
    try:
        if "tensorflow" not in sys.modules:
            _enter_packages()
        return importlib.import_module(_LIBRARY), importlib.import_module(_CONFIGS)
    except (ImportError, AttributeError) as error:
        print(f"importing all of TensorFlow, because importing a part failed: {error}", file=sys.stderr, flush=True)
        for name in [name for name in sys.modules if name == "tensorflow" or name.startswith("tensorflow.")]:
            del sys.modules[name]
        return importlib.import_module(_LIBRARY), importlib.import_module(_CONFIGS)


def _enter_packages() -> None:
    """Enter empty packages into `sys.modules`, in place of those whose `__init__` would import all of TensorFlow."""
    for name in _PACKAGES:
        folder = transfer.tensorflow_dir().joinpath(*name.split(".")[1:])
        if not folder.is_dir():
            raise ImportError(f"TensorFlow lacks the folder {folder}")
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
