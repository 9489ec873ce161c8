"""The lake: paths, Delta tables, commits, and a cache of open tables."""
