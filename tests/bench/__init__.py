"""Benchmarks: the cost of Capstan compared with plain Spark jobs on the same rows.

Both sides of a comparison run alternately, in one session, on the same rows. CPU seconds come
first: on a busy machine, wall-clock time says little.
"""
