"""A function for scripts that a stop request ends in mid-epoch."""

import os

from headrace.tensorflow.keras import model_checkpoint


def signals_beside(folder):
    """Make and return the folder in which this rank looks for signals. After a stop, do not wait for the launcher."""
    signals = folder.parent / "signals"
    signals.mkdir(exist_ok=True)
    os.environ["HEADRACE_SIGNAL_DIR"] = str(signals)
    model_checkpoint.STOPPING_S = 0.0
    return signals
