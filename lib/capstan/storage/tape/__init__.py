"""Tapes: their tables, schema and index, and regions of their times."""
