"""Output of a replay: its rows, its target, and its certificate."""
