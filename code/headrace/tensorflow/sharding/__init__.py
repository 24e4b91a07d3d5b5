"""Split a dataset among workers or ranks: rewrite its graph so that the parts together have exactly its elements."""
