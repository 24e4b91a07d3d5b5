"""A dataset's graph rewritten so that workers or ranks together make exactly its elements."""
