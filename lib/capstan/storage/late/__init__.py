"""Records that are not on tape, and why."""
