"""What ranks of any framework share: the report, signal files, checkpoint folders, the ledger of a stream."""
