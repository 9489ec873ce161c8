"""Operators, the frontier sensor, and their links, lineage and metrics."""
