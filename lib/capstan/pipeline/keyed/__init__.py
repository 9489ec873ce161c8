"""Keyed operators: aggregates by key, and stateful functions of single records."""
