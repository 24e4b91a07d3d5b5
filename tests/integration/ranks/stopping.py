"""Prepare scripts in which a stop request ends training in mid-epoch."""

import os

from headrace.tensorflow.keras import model_checkpoint


def signals_beside(folder):
    """Make the folder for this rank's signals, and return its path."""
    signals = folder.parent / "signals"
    signals.mkdir(exist_ok=True)
    os.environ["HEADRACE_SIGNAL_DIR"] = str(signals)
    model_checkpoint.STOPPING_S = 0.0  # no launcher ends these scripts, so rank 0 must not wait for one
    return signals
