"""State by key: codecs, chunks, placement, and rescales of snapshots."""
