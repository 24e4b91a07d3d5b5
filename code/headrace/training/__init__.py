"""What ranks of any framework share: the report, signal files, checkpoint folders, the ledger of a stream, a handshake.

`headrace/tensorflow` and `headrace/torch` are built on it.
"""
