"""The benchmark: what Capstan costs beside the plain Spark job that moves the same rows.

Both sides of a comparison run in turn, in one session, on the same rows. CPU seconds come first:
the wall time of a machine that others use as well says little.
"""
