"""Code that ranks use with any framework: measurements, checkpoint folders, and signal files for the launcher.

This package also has the record of the elements that have been trained on (`ledger.py`), and the handshake that
authenticates a connection (`handshake.py`). `headrace/tensorflow` and `headrace/torch` use the package.
"""
