"""Fetchers, which make batches in this process or in worker processes."""
