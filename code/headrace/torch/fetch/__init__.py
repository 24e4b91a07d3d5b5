"""Making of batches, in this process or in worker processes."""
