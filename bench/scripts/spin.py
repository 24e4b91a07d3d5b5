"""Use a fraction of a processor while process PID lives: `spin.py FILE PID`. FILE holds the fraction, such as 0.5."""

import os
import sys
import time
from pathlib import Path

PERIOD_S = 0.01
file, pid = Path(sys.argv[1]), int(sys.argv[2])
while os.path.exists(f"/proc/{pid}"):
    began = time.perf_counter()
    end_s = time.process_time() + PERIOD_S * float(file.read_text() or 0)
    while time.process_time() < end_s:
        pass
    time.sleep(max(PERIOD_S - (time.perf_counter() - began), 0.0))
