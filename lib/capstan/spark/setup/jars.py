"""Jars that Spark needs in addition to its own: fetched once by its resolver, kept in the project.

Delta needs only two jars, the Kafka connector four and the Avro source one. Their other
dependencies are part of Spark, and older copies of the same classes would shadow Spark's. Hadoop's
S3 connector depends on Amazon's whole SDK in one jar of 690 MB; the parts that it uses have 13.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from capstan.errors import CapstanError, SystemFailureError
from capstan.spark.project_home import cache_folder, checkout, packages, replacing, set_up
from capstan.spark.setup.java import find_java
from capstan.spark.setup.local_submit import run_submit
from capstan.spark.setup.spark_series import SparkSeries, installed_series

HASHES = Path(__file__).with_name("jars.sha256")
"""The SHA-256 of each published jar, by folder and name in the cache, as `sha256sum` writes it."""
LOG_STORE_JAR = Path(__file__).with_name("s3_log_store") / "capstan-s3-log-store.jar"
"""The jar of Delta's log store for S3; it is part of this package, with its source."""


@dataclass(frozen=True, slots=True)
class Jars:
    """Jars that are fetched together."""

    name: str
    connector: str  # name for `capstan setup`; empty if every session needs them
    packages: tuple[str, ...]  # `group:artifact:version`
    excludes: tuple[str, ...]
    hashes: Path = HASHES  # their SHA-256

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each published file, by its name in the cache."""
        # Read only when needed: executors import this module from an archive of code alone.
        return _read_hashes(self.hashes, self.name)

    @property
    def folder(self) -> Path:
        """Their folder; it may not exist yet."""
        return cache_folder() / self.name

    def there(self) -> tuple[Path, ...]:
        """The paths of the jars."""
        jars = tuple(self.folder / name for name in self.files)
        # A zip has its directory at the end, so this reads little and detects truncated files.
        bad = [jar.name for jar in jars if not zipfile.is_zipfile(jar)]
        if bad:
            raise SystemFailureError(
                "CAP-JARS",
                f"missing or incomplete in {self.folder}: {', '.join(bad)}",
                f"run {set_up(self.connector)}",
                missing=bad,
            )
        return jars

    def fetched(self) -> tuple[Path, ...]:
        """The paths of optional jars; none if they were not fetched."""
        return self.there() if self.folder.is_dir() else ()


@cache
def _read_hashes(path: Path, folder: str) -> dict[str, str]:
    lines = map(str.split, path.read_text(encoding="utf-8").splitlines())
    return {
        name.removeprefix(f"{folder}/"): digest
        for digest, name in lines
        if name.startswith(f"{folder}/")
    }


# What these packages ask for and Spark has, or nothing here uses.
_BESIDE_DELTA = (
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
_BESIDE_KAFKA = (
    "at.yawk.lz4:*",
    "com.google.code.findbugs:*",
    "org.apache.hadoop:*",
    "org.lz4:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
_BESIDE_AVRO = ("org.scala-lang.modules:*", "org.tukaani:*")
_BESIDE_S3 = (
    "commons-codec:*",
    "commons-logging:*",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "org.slf4j:*",
    "software.amazon.awssdk:bundle",
)
_SDK = ("apache-client", "netty-nio-client", "s3", "s3-transfer-manager", "sts")


def jars_of(series: SparkSeries) -> tuple[Jars, Jars, Jars, Jars]:
    """The jars for a minor version of Spark: Delta's, Kafka's, S3's, Avro's."""
    kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{series.connectors}"
    avro = f"org.apache.spark:spark-avro_2.13:{series.connectors}"
    s3 = (
        f"org.apache.hadoop:hadoop-aws:{series.hadoop}",
        *(f"software.amazon.awssdk:{part}:{series.sdk}" for part in _SDK),
    )
    return (
        Jars(series.folder("jars"), "", (series.delta,), _BESIDE_DELTA),
        Jars(series.folder("kafka"), "kafka", (kafka,), _BESIDE_KAFKA),
        Jars(series.folder("s3"), "s3", s3, _BESIDE_S3),
        Jars(series.folder("avro"), "avro", (avro,), _BESIDE_AVRO),
    )


DELTA, KAFKA, S3, AVRO = jars_of(installed_series())
_FETCH_SECONDS = 900.0


def delta_jars() -> tuple[Path, ...]:
    """The jars that Delta needs, none if Spark has them; only an installed package fetches them."""
    if _spark_has_delta():
        return ()
    try:
        return DELTA.there()
    except SystemFailureError:
        if os.environ.get("CAPSTAN_HOME") or checkout() is not None:
            raise
        return fetch(DELTA)


@cache
def _spark_has_delta() -> bool:
    """Whether Delta lies among the jars of `SPARK_HOME`, or of the installed PySpark."""
    spec = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), *(spec.submodule_search_locations or () if spec else ())]
    name = f"delta-spark_{installed_series().name}_2.13-*.jar"
    return any(any(Path(home, "jars").glob(name)) for home in homes if home)


def spark_jars() -> tuple[Path, ...]:
    """All jars of a session in addition to Spark's own."""
    optional = (*KAFKA.fetched(), *S3.fetched(), *AVRO.fetched())
    return (*delta_jars(), log_store_jar(), *optional)


def log_store_jar() -> Path:
    """The jar of the log store for S3."""
    folder = LOG_STORE_JAR.parent.name
    if _read_hashes(HASHES, folder).get(LOG_STORE_JAR.name) != _digest(LOG_STORE_JAR):
        raise SystemFailureError(
            "CAP-JARS",
            f"missing or changed: {LOG_STORE_JAR}",
            packages("spark"),
            missing=[LOG_STORE_JAR.name],
        )
    return LOG_STORE_JAR


@cache
def _digest(path: Path) -> str:
    return sha256(path) if path.is_file() else ""


def fetch(jars: Jars = DELTA) -> tuple[Path, ...]:
    """Fetch missing jars and remove all other files from their folder."""
    # The resolver collects all its downloads in one folder, so each group has a cache of its own.
    cache, folder = cache_folder(), jars.folder
    ivy = cache / ("ivy" if jars.name == "jars" else f"ivy-{jars.name}")
    cache.mkdir(parents=True, exist_ok=True)
    # Other processes must not fetch the same jars meanwhile, which the resolver does not prevent.
    with (cache / f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _wrong(jars, folder):
            _download(jars, ivy)
            folder.mkdir(parents=True, exist_ok=True)
            for name in jars.files:
                with replacing(folder / name) as unfinished:
                    shutil.copyfile(ivy / "jars" / name, unfinished)
        for path in folder.iterdir():
            if path.name not in jars.files:
                path.unlink()
        return jars.there()


def _download(jars: Jars, ivy: Path) -> None:
    if _wrong(jars, ivy / "jars"):
        # A cache left incomplete by an interrupted fetch may be used instead of the repository.
        shutil.rmtree(ivy, ignore_errors=True)
        _resolve(jars, ivy)
    wrong = _wrong(jars, ivy / "jars")
    if wrong:
        raise SystemFailureError(
            "CAP-JARS",
            f"files from Spark's resolver differ from the published ones: {', '.join(wrong)}",
            f"check the repository that Spark fetches from, then run {set_up(jars.connector)}",
        )


def _wrong(jars: Jars, folder: Path) -> list[str]:
    """Names of the jars that are missing from `folder` or have other content."""
    return [
        name
        for name, published in jars.files.items()
        if not (folder / name).is_file() or sha256(folder / name) != published
    ]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _resolve(jars: Jars, ivy: Path) -> None:
    """Resolve packages with `spark-submit` for a program that does nothing; no session starts."""
    settings = {
        "spark.jars.packages": ",".join(jars.packages),
        "spark.jars.excludes": ",".join(jars.excludes),
        "spark.jars.ivy": str(ivy),
    }
    with tempfile.TemporaryDirectory(prefix="capstan-") as folder:
        nothing = Path(folder) / "nothing.py"
        nothing.write_text("", encoding="utf-8")
        program, java = [str(nothing)], find_java()
        try:
            done = run_submit(
                "local[1]", settings, program, java=java, folder=folder, seconds=_FETCH_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _cannot_fetch(jars, str(error)) from error
    if done.returncode != 0:
        raise _cannot_fetch(jars, _reason(done.stderr + done.stdout))


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [
        line for line in lines if "rror" in line or "unresolved" in line or "xception" in line
    ]
    return (telling or lines or ["no output"])[0]


def _cannot_fetch(jars: Jars, reason: str) -> SystemFailureError:
    return SystemFailureError(
        "CAP-JARS",
        f"Spark's resolver could not fetch {', '.join(jars.packages)}: {reason}",
        "check the connection to Maven Central (DEFAULT_ARTIFACT_REPOSITORY names another "
        f"repository), then run {set_up(jars.connector)}",
    )


def main(jars: Jars = DELTA) -> int:
    """Fetch what is missing, and say what is there; the exit code of the process."""
    try:
        found = fetch(jars)
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"{jars.name}: {', '.join(jar.name for jar in found)}")
    return 0


def _fetch_named(names: list[str]) -> int:
    """Fetch what is named, Delta's jars where nothing is; the exit code of the process."""
    known = {jars.connector: jars for jars in (KAFKA, S3, AVRO)}
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"jars: {', '.join(unknown)}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    return max(main(known[name]) for name in names) if names else main()


if __name__ == "__main__":
    sys.exit(_fetch_named(sys.argv[1:]))
