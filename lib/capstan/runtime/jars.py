"""Delta's jars: fetched once by Spark's own resolver, kept in the project's folder.

Two jars are enough. The rest of what they name as dependencies is in Spark already, and older
copies of the same classes would come before Spark's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from capstan.errors import Broken, CapstanError
from capstan.runtime.home import cache_folder
from capstan.runtime.java import find_java, spark_home

DELTA_VERSION = "4.4.0"
SPARK_SERIES = "4.2"
PACKAGE = f"io.delta:delta-spark_{SPARK_SERIES}_2.13:{DELTA_VERSION}"
# Name in the cache, then the SHA-256 of the published file.
JARS = {
    f"io.delta_delta-spark_{SPARK_SERIES}_2.13-{DELTA_VERSION}.jar": (
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    f"io.delta_delta-storage-{DELTA_VERSION}.jar": (
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
    ),
}
EXCLUDES = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.delta:delta-kernel-api",
    "io.delta:delta-kernel-defaults",
    "io.delta:delta-kernel-unitycatalog",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
_FETCH_SECONDS = 900.0


def delta_jars() -> tuple[Path, ...]:
    """The jars that Spark needs for Delta, as set-up left them.

    Raises:
        Broken: `CAP-JARS` when one is missing or cut short.
    """
    folder = cache_folder() / "jars"
    jars = tuple(folder / name for name in JARS)
    # A zip's directory is at its end: this reads little, and sees a file that was cut short.
    bad = [jar.name for jar in jars if not zipfile.is_zipfile(jar)]
    if bad:
        raise Broken(
            "CAP-JARS",
            f"missing or not whole in {folder}: {', '.join(bad)}",
            "run `make setup`",
            missing=bad,
        )
    return jars


def fetch() -> tuple[Path, ...]:
    """Fetch the jars that are missing, and leave exactly those in the cache.

    Raises:
        Broken: `CAP-JARS` when the resolver fails, or what it brings is not what was published.
    """
    folder, ivy = cache_folder() / "jars", cache_folder() / "ivy"
    if not _wrong(folder):
        _drop_others(folder)
        return delta_jars()
    if _wrong(ivy / "jars"):
        # A cache that an interrupted fetch left half done may answer instead of the repository.
        shutil.rmtree(ivy, ignore_errors=True)
        _resolve(ivy)
    wrong = _wrong(ivy / "jars")
    if wrong:
        raise Broken(
            "CAP-JARS",
            f"what Spark's resolver brought is not what was published: {', '.join(wrong)}",
            "check the repository that Spark fetches from, then run `make setup`",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in JARS:
        unfinished = folder / f"{name}.{os.getpid()}"
        shutil.copyfile(ivy / "jars" / name, unfinished)
        unfinished.replace(folder / name)
    _drop_others(folder)
    return delta_jars()


def _wrong(folder: Path) -> list[str]:
    """Names of the jars that `folder` lacks or has with other content."""
    return [
        name
        for name, published in JARS.items()
        if not (folder / name).is_file() or _sha256(folder / name) != published
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _drop_others(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in JARS:
            path.unlink()


def _resolve(ivy: Path) -> None:
    """Let `spark-submit` resolve the package for a program that does nothing: no session starts."""
    import pyspark

    home = Path(pyspark.__file__).parent
    settings = {
        "spark.jars.packages": PACKAGE,
        "spark.jars.excludes": ",".join(EXCLUDES),
        "spark.jars.ivy": str(ivy),
    }
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(spark_home(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with tempfile.TemporaryDirectory(prefix="capstan-") as folder:
        nothing = Path(folder) / "nothing.py"
        nothing.write_text("", encoding="utf-8")
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        try:
            done = subprocess.run(
                [*command, str(nothing)],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _cannot_fetch(str(error)) from error
    if done.returncode != 0:
        raise _cannot_fetch(_reason(done.stderr + done.stdout))


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [
        line for line in lines if "rror" in line or "unresolved" in line or "xception" in line
    ]
    return (telling or lines or ["no output"])[0]


def _cannot_fetch(reason: str) -> Broken:
    return Broken(
        "CAP-JARS",
        f"Spark's resolver could not fetch {PACKAGE}: {reason}",
        "check the way to Maven Central (DEFAULT_ARTIFACT_REPOSITORY names another repository), "
        "then run `make setup`",
    )


def main() -> int:
    """Fetch what is missing, and say what is there; the exit code of the process."""
    try:
        jars = fetch()
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"jars: {', '.join(jar.name for jar in jars)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
