"""Options for `spark-submit`: fast start, Delta, Java and Python."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan.spark.setup import jvm
from capstan.spark.setup.class_archive import archive_options, local_settings
from capstan.spark.setup.jars import spark_jars
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.local_submit import pyspark_home


@dataclass(frozen=True, slots=True)
class Submission:
    """Settings of one submitted job."""

    conf: Mapping[str, str]  # known before the driver's JVM starts
    environment: Mapping[str, str]  # besides the variables of this process
    jars: str  # Delta's, with commas; empty if on the driver's class path
    memory: str  # the driver's, such as `4096m`; empty for that of the cluster


def submission(master: str, *, short: bool = False, elsewhere: bool = False) -> Submission:
    """Settings for a job; `capstan.spark.session` makes all others in the job.

    Of a driver `elsewhere`, in cluster mode, memory and log settings are those of the cluster.
    """
    java, jars = find_java(), ",".join(str(jar) for jar in spark_jars())
    local = jvm.is_local(master)
    conf = {
        jvm.OPTIONS: jvm.driver_options(
            archive_options(java) if local else "",
            jvm.SHORT if short else "",
            level=None if elsewhere else "WARN",
        ),
        "spark.ui.showConsoleProgress": "false",
    }
    if short:
        # In such a short job, code generation for few rows takes a quarter of the time.
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
    own = elsewhere and "CAPSTAN_DRIVER_MEMORY" not in os.environ
    memory = "" if own else jvm.driver_memory()
    return Submission(conf, environment, "" if local else jars, memory)


def _path() -> str:
    """The search path, with the programs of this interpreter last."""
    programs = str(Path(sys.executable).parent)
    return os.pathsep.join(p for p in (os.environ.get("PATH", os.defpath), programs) if p)
