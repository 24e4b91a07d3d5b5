"""A regular package, because one of our dependencies installs a package `tests` too."""
