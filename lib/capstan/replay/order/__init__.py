"""Dependence of a query's output on the order of its input rows, found in its analysed plan."""
