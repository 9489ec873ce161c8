"""Records that are not on tape: why, and which of them were dropped."""
