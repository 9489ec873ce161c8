"""Keyed operators: aggregates, and functions of a record and a state."""
