"""Spark jobs: a JSON request, one call, a result file, an exit code.

`python -m capstan.jobs replay` runs one, and so does its file for `spark-submit`, which `job_file`
names. `capstan.jobs.handlers` has what they do.
"""

from __future__ import annotations

from pathlib import Path

from capstan.spark.project_home import checkout


def job_file(name: str) -> str:
    """The file of a job, such as `replay`, as the application of `spark-submit`."""
    # The wheel has the files of the checkout's top folder inside the package.
    return str((checkout() or Path(__file__).parents[1]) / "spark_apps" / f"{name}.py")
