"""Named, because a package of our dependencies installs a `tests` of its own."""
