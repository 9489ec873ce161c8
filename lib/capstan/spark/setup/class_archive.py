"""Class-data archive: the classes of Spark and Delta as a JVM has them after loading.

A driver that maps the archive starts several seconds sooner. An archive is specific to one Java and
one list of jars, which its name identifies. Without a matching archive a JVM starts normally.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from capstan.errors import CapstanError, SystemFailureError
from capstan.spark.project_home import cache_folder, replacing
from capstan.spark.setup import jvm
from capstan.spark.setup.jars import spark_jars
from capstan.spark.setup.java import Java, find_java, spark_home
from capstan.spark.setup.local_submit import pyspark_home, run_submit

_SECONDS = 600.0
# The archive is filled by a small capture and a small replay.
_TRAINING = Path(__file__).parents[2] / "jobs" / "warmup.py"
# A JVM reports on standard output when an archive does not match; that is not an error here.
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_path(java: Java) -> Path:
    """The path of the archive for `java` and the current jars; it may not exist."""
    jars = sorted([*(pyspark_home() / "jars").glob("*.jar"), *spark_jars()])
    # Identified by Spark's Java home: a Java is the same one with and without its shim.
    home = str(spark_home(java))
    parts = [java.version, home, *(f"{jar}:{jar.stat().st_size}" for jar in jars)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"{key}.jsa"


def archive_options(java: Java) -> str:
    """The JVM options that map the archive of `java`; empty without an archive."""
    try:
        path = archive_path(java)
        return f"-XX:SharedArchiveFile={path} {_QUIET}" if path.stat().st_size else ""
    except OSError:
        return ""


def local_settings(master: str) -> dict[str, str]:
    """Settings for the driver of a local `master` that match the archive."""
    # There is only one JVM, so its class path serves everything. Delta's jars come first in it, as
    # they did when the archive was made.
    jars = os.pathsep.join(str(jar) for jar in spark_jars())
    return {**jvm.local_settings(master), "spark.driver.extraClassPath": jars}


def make_archive(say: Callable[[str], None] = print) -> Path:
    """Create the archive, atomically, by a small job of a minute or two; removes outdated ones."""
    java = find_java()
    path = archive_path(java)
    if not path.is_file():
        say("class archive: starting Spark once, so that it starts faster from now on")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            _train(java, unfinished)
    for other in path.parent.glob("*.jsa"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def _train(java: Java, archive: Path) -> None:
    options = jvm.driver_options(f"-XX:ArchiveClassesAtExit={archive}", _QUIET)
    settings = {**local_settings("local[2]"), jvm.OPTIONS: options, "spark.driver.memory": "1g"}
    # A configuration folder would be on the class path, where an archive accepts only jars.
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    with tempfile.TemporaryDirectory(prefix="capstan-classes-") as folder:
        try:
            done = run_submit(
                "local[2]",
                settings,
                [str(_TRAINING), folder],
                java=java,
                folder=folder,
                seconds=_SECONDS,
                environment=inherited,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_made(str(error)) from error
    if done.returncode != 0 or not archive.is_file():
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise _not_made(lines[-1] if lines else f"spark-submit exited with {done.returncode}")


def _not_made(reason: str) -> SystemFailureError:
    hint = "run `capstan doctor --deep`; Spark works without the archive, but starts slower"
    return SystemFailureError("CAP-ARCHIVE", f"cannot create the class archive: {reason}", hint)


def main() -> int:
    """Create the archive unless it exists; a failure is printed, but the exit code is 0."""
    try:
        make_archive()
    except CapstanError as error:
        print(f"{error}; {error.hint}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
