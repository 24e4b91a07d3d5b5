"""Write each rank's arguments to the output folder, and check its environment."""

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

found = Path("/opt/ml/output/data", f"arguments-{MPI.COMM_WORLD.rank}.json")
found.write_text(json.dumps(sys.argv[1:]))
assert os.environ["HEADRACE_TEST"] == "given", "--custom_mpi_options did not reach this rank"
assert os.environ["NCCL_SOCKET_IFNAME"] == "eth0"
assert os.environ["SM_CURRENT_HOST"] in MPI.Get_processor_name()
