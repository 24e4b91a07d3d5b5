"""Rewrite a dataset's graph so that workers or ranks together make exactly its elements."""
