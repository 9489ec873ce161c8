"""Checks that of several concurrent commits to a table one succeeds, and the others learn it.

Delta leaves this to a log store, which leaves it to the file system. Folders, HDFS and the stores
of Azure and Google ensure it when a file is created. S3 ensures it only for conditional puts.
Delta's default for S3 does not use them: both of two commits succeed there, and one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.errors.shell_command import shell_line
from capstan.errors.translation import root_message
from capstan.spark.setup.jars import LOG_STORE_JAR

LOG_STORE = "capstan.delta.ConditionalS3LogStore"
"""The log store for S3 in the jar of this package."""
_SCHEMES = ("s3", "s3a")
LOG_STORES = {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in _SCHEMES}
"""Settings of a session that writes to S3; they must be known when Spark starts."""
CHECKPOINT_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": "capstan.delta.ConditionalS3CheckpointFiles"
}
"""The setting by which files of checkpoints on S3 are put at once, in place of renamed."""

_ANY = "spark.delta.logStore.class"
# The last one is of a later Delta; like ours, it uses conditional puts.
_SAFE = (LOG_STORE, "io.delta.storage.S3LogStore")
_DELTA = ("io.delta.storage.", "org.apache.spark.sql.delta.storage.")
_CONDITION = "fs.option.create.conditional.overwrite"
# The class of Hadoop that has this option, since 3.4.2.
_CONDITIONAL = "org.apache.hadoop.fs.Options$CreateFileOptionKeys"
# Settings of S3A that switch off conditional puts, or the check before a file is created.
_DEFEATING = {
    "fs.s3a.create.conditional.enabled": {"false"},
    "fs.s3a.create.performance": {"true"},
    "fs.s3a.performance.flags": {"create", "*"},
}
# S3A's exception when S3 rejects a conditional put.
_REJECTED = "RemoteFileChangedException"

Get = Callable[[str], str | None]

# Places where something was made, as this process has seen.
_tried: set[str] = set()


def require_safe_commits(session: SparkSession, place: str) -> None:
    """Check that of two concurrent commits to a table only one can succeed."""
    # A folder needs no check. The first time something is made in an object store, two writers
    # create one file there, and one must fail: names and settings alone prove nothing.
    scheme, separator, rest = place.partition("://")
    if not separator:
        return
    if scheme in _SCHEMES:
        hadoop = session._jsparkSession.sessionState().newHadoopConf()
        require_safe_settings(
            place, session.sparkContext.getConf().get, _of_bucket(hadoop.get, rest)
        )
        _require_class(scheme, session.sparkContext.getConf().get)
    if place in _tried:
        return
    with _reaching(session, place) as (system, path):
        # S3A leaves a mark there when a file is deleted.
        is_empty = not system.exists(path) or not system.listStatusIterator(path).hasNext()
    if is_empty:
        require_one_creator(session, place)
    _tried.add(place)


def require_safe_settings(place: str, spark: Get, hadoop: Get) -> None:
    """Check a session's settings for a place on S3: those of Spark, and Hadoop's of the bucket."""
    scheme = place.partition("://")[0]
    key = f"spark.delta.logStore.{scheme}.impl"
    store = _store(scheme, spark)
    if store is None:
        raise InvalidRequestError(
            "CAP-LAKE",
            f"concurrent commits to {place} would overwrite each other: the session has no log "
            "store for S3",
            f"build the session with {key}={LOG_STORE} and the jar {LOG_STORE_JAR}",
            lake=place,
        )
    if store not in _SAFE and store.startswith(_DELTA):
        raise InvalidRequestError(
            "CAP-LAKE",
            f"concurrent commits to {place} would overwrite each other: {store} does not prevent "
            "this on S3",
            f"set {key} to {LOG_STORE}",
            lake=place,
        )
    for name, defeats in _DEFEATING.items():
        value = hadoop(name) or ""
        if defeats & {part.strip() for part in value.lower().split(",")}:
            raise InvalidRequestError(
                "CAP-LAKE",
                f"{name}={value} lets concurrent commits to {place} overwrite each other",
                f"remove {name} from Spark's and Hadoop's settings",
                lake=place,
            )


def _store(scheme: str, spark: Get) -> str | None:
    return spark(f"spark.delta.logStore.{scheme}.impl") or spark(_ANY) or None


def _of_bucket(hadoop: Get, rest: str) -> Get:
    """Settings for the bucket of a path, where S3A has them, before those for all buckets."""
    bucket = rest.partition("/")[0]

    def get(name: str) -> str | None:
        own = name.replace("fs.s3a.", f"fs.s3a.bucket.{bucket}.", 1)
        return hadoop(own) or hadoop(name)

    return get


def _require_class(scheme: str, spark: Get) -> None:
    store = _store(scheme, spark) or ""
    if not has_class(store):
        raise InvalidRequestError(
            "CAP-LAKE",
            f"Spark has no class {store}, the log store for {scheme}://",
            f"give {shell_line('spark-submit', '--jars', LOG_STORE_JAR)}"
            if store == LOG_STORE
            else f"give Spark its jar, or set spark.delta.logStore.{scheme}.impl to {LOG_STORE}",
        )
    if store == LOG_STORE and not has_class(_CONDITIONAL):
        raise InvalidRequestError(
            "CAP-LAKE",
            f"concurrent commits to {scheme}:// would overwrite each other: the Hadoop in this "
            "Spark cannot create a file on S3 only where there is none",
            "use Spark 4.1 or later; listings, plans and reports need no Spark and work as before",
        )


def has_class(name: str) -> bool:
    """Whether the JVM of this process finds a class."""
    jvm = SparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        return bool(jvm.java.lang.Class.forName(name, False, loader))
    except Py4JJavaError:
        return False


def require_one_creator(session: SparkSession, place: str) -> None:
    """Check that of two writers who create one file at a place, one fails."""
    # Both open the file before one of them closes it; a check for the file cannot tell them apart.
    failures: list[Py4JJavaError] = []
    with _reaching(session, f"{place}/.capstan-{uuid4().hex}") as (system, path):
        streams = [
            _attempt(failures, lambda: _create(system, path, place.partition("://")[0]))
            for _ in range(2)
        ]
        for stream in filter(None, streams):
            _attempt(failures, stream.close)
        if len(failures) < 2:
            system.delete(path, False)
    if not failures:
        raise InvalidRequestError(
            "CAP-LAKE",
            f"the store of {place} let two writers create the same file: concurrent commits would "
            "overwrite each other",
            "use a store with conditional puts (`If-None-Match`), or keep the lake and its targets "
            "in a shared file system",
            lake=place,
        )
    is_s3 = place.partition("://")[0] in _SCHEMES
    if len(failures) == 2 or (is_s3 and _REJECTED not in str(failures[0])):
        raise _unreachable(place, failures[0]) from failures[0]


def _create(system: JavaObject, path: JavaObject, scheme: str) -> JavaObject:
    if scheme not in _SCHEMES:
        return system.create(path, False)
    return system.createFile(path).overwrite(False).recursive().must(_CONDITION, True).build()


def _attempt(failures: list[Py4JJavaError], action: Callable[[], JavaObject]) -> JavaObject | None:
    try:
        return action()
    except Py4JJavaError as error:
        failures.append(error)
        return None


@contextmanager
def _reaching(session: SparkSession, place: str) -> Iterator[tuple[JavaObject, JavaObject]]:
    """Hadoop's file system and path of a place; errors inside the `with` block are translated."""
    jvm = session._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(place)
    try:
        yield path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), path
    except Py4JJavaError as error:
        raise _unreachable(place, error) from error


def _unreachable(place: str, error: Py4JJavaError) -> SystemFailureError:
    return SystemFailureError(
        "CAP-LAKE",
        f"cannot reach {place}: {root_message(error)}",
        "check the URI, the credentials, and that Spark has the connector's jars",
        lake=place,
    )
