"""Graphs of operators: built, validated, cut into stages, and signed."""
