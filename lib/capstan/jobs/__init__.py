"""Spark apps: a JSON request, one call, a result file, an exit code.

Each module that is a program is one app: `python -m capstan.jobs.replay`, or the file's path for
`spark-submit`. `capstan.jobs.handlers` has what they do.
"""
