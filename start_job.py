"""Submit a training job, or run it here: see `python start_job.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "code"))

from headrace.start import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
