"""What to give `spark-submit` so that an app starts fast, and reaches Delta, Java and Python."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan.spark import jvm
from capstan.spark.class_archive import archive_options, local_settings, pyspark_home
from capstan.spark.jars import spark_jars
from capstan.spark.java import find_java, spark_home


@dataclass(frozen=True, slots=True)
class Submission:
    """Settings of one submitted app.

    Attributes:
        conf: Spark settings that must be known before the driver's JVM starts.
        environment: Variables that `spark-submit` needs, beside those of the present process.
        jars: Delta's jars, by commas; empty where they are on the driver's class path already.
        memory: The driver's memory, such as `4096m`.
    """

    conf: Mapping[str, str]
    environment: Mapping[str, str]
    jars: str
    memory: str


def submission(master: str, *, short: bool = False) -> Submission:
    """Settings for an app on `master`, in client mode.

    Everything else that a session needs is set by `capstan.spark.session` inside the app.

    Args:
        master: A Spark master URL.
        short: Whether the app ends within a minute or two; see `capstan.spark.jvm.SHORT`.

    Raises:
        SystemFailureError: `CAP-JAVA` or `CAP-JARS` when set-up is not done.
        InvalidRequestError: `CAP-SETTING` when a variable of Capstan has a wrong value.
    """
    java, jars = find_java(), ",".join(str(jar) for jar in spark_jars())
    local = jvm.is_local(master)
    conf = {
        jvm.OPTIONS: jvm.driver_options(
            archive_options(java) if local else "", jvm.SHORT if short else "", level="WARN"
        ),
        "spark.ui.showConsoleProgress": "false",
    }
    if short:
        # Of a job that ends so soon a quarter is generating and compiling projections of few rows.
        conf["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"
    if local:
        conf |= local_settings(master)
    environment = {
        "PATH": _path(),
        "JAVA_HOME": str(spark_home(java)),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
    }
    if local:
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if shutil.which("spark-submit") is None and "SPARK_HOME" not in os.environ:
        environment["SPARK_HOME"] = str(pyspark_home())
    return Submission(conf, environment, "" if local else jars, jvm.driver_memory())


def _path() -> str:
    """The search path, with the programs of this interpreter after all others."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join(part for part in (os.environ.get("PATH", os.defpath), own) if part)
