"""The minor versions of Spark that Capstan runs on, and what goes with each."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from capstan.errors import SystemFailureError
from capstan.spark.project_home import packages

DELTA_VERSION = "4.4.0"
"""The version of Delta's jars; it is published for each of these minor versions of Spark."""


@dataclass(frozen=True, slots=True)
class SparkSeries:
    """A minor version of Spark."""

    name: str
    connectors: str  # the version of its connectors that is fetched
    hadoop: str  # the Hadoop in it; the S3 connector must have the same version
    writes_s3: bool  # whether this Hadoop can create a file on S3 only where there is none
    sdk: str  # of Amazon's SDK: at least the version that this Hadoop was built with

    @property
    def delta(self) -> str:
        """Delta's package for it, as `group:artifact:version`."""
        return f"io.delta:delta-spark_{self.name}_2.13:{DELTA_VERSION}"

    def folder(self, jars: str) -> str:
        """The folder of the cache that has some of its jars."""
        return jars if self == NEWEST else f"{jars}-{self.name}"


SERIES = (
    SparkSeries("4.0", "4.0.0", "3.4.1", False, "2.29.52"),
    SparkSeries("4.1", "4.1.1", "3.4.2", True, "2.29.52"),
    SparkSeries("4.2", "4.2.0", "3.5.0", True, "2.35.4"),
)
NEWEST = SERIES[-1]


def installed_version() -> str:
    """The version of the installed PySpark, found without importing it.

    Raises:
        SystemFailureError: `CAP-SPARK` if there is none.
    """
    try:
        spec = importlib.util.find_spec("pyspark")
    except ModuleNotFoundError:
        spec = None
    # Executors have it in an archive, so it may be no file.
    read = getattr(spec.loader, "get_data", None) if spec else None
    if spec is None or spec.origin is None or read is None:
        raise SystemFailureError("CAP-SPARK", "PySpark is not installed", packages("spark"))
    text = read(str(Path(spec.origin).with_name("version.py"))).decode()
    found = re.search(r'__version__[^"\']*["\']([^"\']+)', text)
    return found.group(1) if found else ""


@cache
def installed_series() -> SparkSeries:
    """The minor version of the installed PySpark; the newest one where that is another, or none."""
    try:
        return _series(installed_version()) or NEWEST
    except SystemFailureError:
        return NEWEST


def require_series(version: str) -> SparkSeries:
    """The minor version of a version of Spark.

    Raises:
        SystemFailureError: `CAP-SPARK-VERSION` if Capstan does not run on it.
    """
    found = _series(version)
    if found is None:
        raise SystemFailureError(
            "CAP-SPARK-VERSION",
            f"Capstan does not run on Spark {version}, but on {SERIES[0].name} to {NEWEST.name}",
            packages("spark"),
            version=version,
        )
    return found


def _series(version: str) -> SparkSeries | None:
    return next((each for each in SERIES if version.startswith(f"{each.name}.")), None)
