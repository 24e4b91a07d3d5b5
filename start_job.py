"""Submit a training job, or run it here: see `python start_job.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "code"))

try:
    from headrace.cli.start import main
except ImportError as error:
    sys.exit(f"start_job.py: error: {sys.executable}: {error}; use .venv/bin/python, which `make setup` makes")
except KeyboardInterrupt:
    sys.exit("start_job.py: interrupted")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
