"""Spark apps: a JSON request, one call, a result file, an exit code.

Each module that is a program is one app: `python -m capstan.jobs.replay`, or its file for
`spark-submit`, which `job_file` names. `capstan.jobs.handlers` has what they do.
"""

from __future__ import annotations

from pathlib import Path


def job_file(name: str) -> str:
    """The file of a job, such as `replay`, as the application of `spark-submit`.

    Args:
        name: The job: a module of this package.
    """
    return str(Path(__file__).with_name(f"{name}.py"))
