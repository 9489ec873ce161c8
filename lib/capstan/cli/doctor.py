"""Environment checks: what Capstan needs, what is missing, and how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from importlib import metadata
from pathlib import Path

from capstan.errors import CapstanError
from capstan.spark.project_home import packages, project_home, set_up
from capstan.spark.setup import jars
from capstan.spark.setup.java import find_java
from capstan.spark.setup.spark_series import DELTA_VERSION, installed_version, require_series

_LEAST_FREE = 2 << 30
_PYTHONS = ((3, 11), (3, 12), (3, 13))
_SESSION = "Spark session"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check; without a remedy if it passes."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""


def diagnose(lake: str | None, *, deep: bool = False) -> list[Diagnosis]:
    """Check everything that Capstan needs; changes nothing, and raises nothing.

    Args:
        lake: A folder or object-store URI to check as well, or None.
        deep: Also start Spark, and write and read a small Delta table in a temporary folder; in an
            object store, check that of two writers who create one file one fails.
    """
    findings = [
        _python(),
        _found("Java", _java),
        _found("Spark", _spark_series),
        _package("delta-spark", f"{DELTA_VERSION.rpartition('.')[0]}.*"),
        _found("Delta jars", lambda: ", ".join(jar.name for jar in jars.delta_jars())),
        _found("Kafka jars", partial(_fetched, jars.KAFKA)),
        _found("S3 jars", partial(_fetched, jars.S3)),
        _found("Avro jars", partial(_fetched, jars.AVRO)),
        _package("pyarrow"),
        _package("deltalake"),
        _airflow(),
        _disk(lake),
    ]
    if lake is not None:
        findings.append(_lake(lake))
    if deep:
        findings.append(_spark(lake if lake is not None and "://" in lake else None))
    return findings


def _python() -> Diagnosis:
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] in _PYTHONS:
        return Diagnosis("Python", True, detail)
    return Diagnosis("Python", False, detail, "use Python 3.11, 3.12 or 3.13")


def _found(subject: str, find: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(subject, True, find())
    except CapstanError as error:
        return Diagnosis(subject, False, error.message, error.hint)


def _java() -> str:
    skipped: list[str] = []
    java = find_java(skipped.append)
    notes = "".join(f"; {line}" for line in skipped)
    return f"{java.version} at {java.home} (from {java.source}){notes}"


def _spark_series() -> str:
    version = installed_version()
    series = require_series(version)
    return f"{version}, with Delta {DELTA_VERSION} and Hadoop {series.hadoop}"


def _package(name: str, versions: str = "*") -> Diagnosis:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Diagnosis(name, False, "not installed", packages("spark"))
    if fnmatch(version, versions):
        return Diagnosis(name, True, version)
    problem = f"Capstan does not work with version {version}"
    return Diagnosis(name, False, problem, packages("spark"))


def _fetched(connector: jars.Jars) -> str:
    missing = f"not installed ({set_up(connector.connector)} fetches them)"
    fetched = connector.fetched()
    return f"{len(fetched)} in {connector.folder}" if fetched else missing


def _airflow() -> Diagnosis:
    try:
        return Diagnosis("Airflow", True, metadata.version("apache-airflow"))
    except metadata.PackageNotFoundError:
        return Diagnosis("Airflow", True, "not installed (the command line does not need it)")


def _disk(lake: str | None) -> Diagnosis:
    folder = _existing(Path(lake) if lake and "://" not in lake else project_home())
    free = shutil.disk_usage(folder).free
    detail = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free >= _LEAST_FREE:
        return Diagnosis("Disk", True, detail)
    return Diagnosis("Disk", False, detail, f"free some space: at least {_LEAST_FREE >> 30} GiB")


def _existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _lake(lake: str) -> Diagnosis:
    try:
        return _uri_lake(lake) if "://" in lake else _folder_lake(Path(lake).absolute())
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Diagnosis("Lake", False, f"{lake}: {reason}", "check the path and your permissions")


def _folder_lake(lake: Path) -> Diagnosis:
    existing = _existing(lake)
    if not existing.is_dir():
        return Diagnosis("Lake", False, f"{existing} is a file", "give a folder as the lake")
    if not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} cannot be written"
        return Diagnosis("Lake", False, problem, "ask for permission to write")
    if existing == lake:
        return Diagnosis("Lake", True, f"{lake} is writable")
    return Diagnosis("Lake", True, f"{lake} does not exist yet, and can be created")


def _uri_lake(lake: str) -> Diagnosis:
    from capstan.storage.lake import delete_file, write_text

    probe = f"{lake.rstrip('/')}/.capstan-{uuid.uuid4().hex}"
    write_text(probe, "capstan")
    delete_file(probe)
    return Diagnosis("Lake", True, f"{lake} is writable")


def _spark(lake: str | None) -> Diagnosis:
    # Spark is imported here only: the other checks are fast without it.
    from pyspark import SparkContext

    from capstan.spark.safe_commits import require_one_creator, require_safe_commits
    from capstan.spark.session import build_session

    ours = SparkContext._active_spark_context is None
    try:
        spark = build_session("capstan-doctor")
        try:
            with tempfile.TemporaryDirectory(prefix="capstan-doctor-") as folder:
                path = f"{folder}/table"
                spark.range(3).write.format("delta").save(path)
                rows = spark.read.format("delta").load(path).count()
            if lake is not None:
                require_safe_commits(spark, lake)
                require_one_creator(spark, lake)
            detail = f"{spark.version}, master {spark.sparkContext.master}, {rows} of 3 rows read"
        finally:
            if ours:
                spark.stop()
    except CapstanError as error:
        return Diagnosis(_SESSION, False, str(error), error.hint)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Diagnosis(_SESSION, False, reason, "CAPSTAN_LOG_LEVEL=INFO shows what Spark does")
    return Diagnosis(_SESSION, rows == 3, detail, "" if rows == 3 else f"run {set_up()}")
