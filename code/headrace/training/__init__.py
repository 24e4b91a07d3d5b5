"""What ranks of any framework share: the report, signal files, checkpoint folders, the ledger of a stream.

`headrace/tensorflow` is over it; a `headrace/torch` would be too.
"""
