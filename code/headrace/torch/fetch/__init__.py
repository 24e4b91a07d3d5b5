"""Makes the batch of a request, in this process or in worker processes."""
