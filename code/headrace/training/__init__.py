"""Code for ranks of any framework: the report, signal files, checkpoint folders, a stream's ledger, the handshake.

`headrace/tensorflow` and `headrace/torch` use it.
"""
