"""The installed PySpark and its `spark-submit`, which set-up runs on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from capstan.errors import SystemFailureError
from capstan.spark.project_home import packages
from capstan.spark.setup.java import Java, spark_home


def pyspark_home() -> Path:
    """The folder of the installed PySpark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemFailureError("CAP-SPARK", "PySpark is not installed", packages("spark"))
    return Path(spec.origin).parent


def run_submit(
    master: str,
    settings: Mapping[str, str],
    program: Sequence[str],
    *,
    java: Java,
    folder: str,
    seconds: float,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """Run a program and its arguments with `spark-submit`, and return when it has ended."""
    home = pyspark_home()
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", master, *options, *program],
        cwd=folder,
        env={
            **environment,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(spark_home(java)),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
