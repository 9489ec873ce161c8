"""Keyed state: codecs, chunks, placement, and rescales of snapshots."""
