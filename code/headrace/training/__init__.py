"""Code that ranks use with any framework: measurements, checkpoint folders, and signal files for the launcher.

It also has the record of the elements that have been trained on (`ledger.py`), and the handshake by which a connection
is authenticated. `headrace/tensorflow` and `headrace/torch` use it.
"""
