"""Reports on finished runs, comparisons between runs, and plans for further runs."""
