"""Commits to S3, with a real server: of several writers one succeeds, and knows it.

What needs `make s3 objects` is nightly.
"""

from __future__ import annotations

import filecmp
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.safe_commits import (
    CHECKPOINT_FILES,
    LOG_STORE,
    require_one_creator,
    require_safe_commits,
)
from capstan.spark.setup.jars import LOG_STORE_JAR
from capstan.spark.setup.spark_series import installed_series
from capstan.storage import lake as places
from tests.support import commit_race, log_store_jar
from tests.support.s3_faults import Fault, faulty
from tests.support.s3_server import BUCKET, Objects, objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

nightly = pytest.mark.nightly
DELTA_S = "io.delta.storage.S3SingleDriverLogStore"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(tmp_path_factory.mktemp("objects")) as actual:
        yield actual


def race(server: Objects, store: str, writers: int, versions: int, key: str) -> list[list[int]]:
    """The versions that each writer was told it has written."""
    table = f"s3a://{BUCKET}/{key}"
    return commit_race.race(store, table, writers, versions, server.variables)


def writer_of(table: str, version: int) -> str:
    actual: str = json.loads(places.read_text(commit_race.entry(table, version)))["commitInfo"][
        "writer"
    ]
    return actual


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("writers", [2, 4])
def test_each_version_has_one_winner(
    s3: Objects, monkeypatch: pytest.MonkeyPatch, writers: int
) -> None:
    versions, table = 1000, f"s3a://{BUCKET}/race-{writers}"
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    won = race(s3, LOG_STORE, writers, versions, f"race-{writers}")
    assert sorted(version for item in won for version in item) == list(range(versions))
    # It was a race: nobody won all.
    assert all(won)
    for number, item in enumerate(won):
        assert {writer_of(table, version) for version in item[::50]} == {str(number)}


@nightly
def test_with_delta_s_default_store_there_are_several(s3: Objects) -> None:
    won = race(s3, DELTA_S, 2, 200, "default")
    assert set(won[0]) & set(won[1])


@nightly
def test_a_writer_whose_answer_is_lost_knows_its_own_entry(s3: Objects) -> None:
    seen: set[str] = set()

    def lose_first(method: str, path: str) -> Fault:
        if method != "PUT" or "_delta_log" not in path or path in seen:
            return "none"
        seen.add(path)
        return "lose answer"

    with faulty(s3.endpoint) as proxy:
        proxy.decide = lose_first
        assert race(Objects(proxy.endpoint), LOG_STORE, 1, 5, "lost") == [[0, 1, 2, 3, 4]]
        assert len(seen) == 5
        # Another one, whose first answers are lost as well, is not taken for it.
        seen.clear()
        assert race(Objects(proxy.endpoint), LOG_STORE, 1, 6, "lost") == [[5]]


@pytest.fixture
def told(s3: Objects, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket, which this process knows the way to."""
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{BUCKET}"


@pytest.fixture
def proxied(spark: SparkSession, s3: Objects) -> Iterator[tuple[SparkSession, Any]]:
    """A session whose way to S3 leads over a proxy, and the proxy."""
    with faulty(s3.endpoint) as proxy:
        session = spark.newSession()
        settings = {
            **Objects(proxy.endpoint).settings,
            "fs.s3a.impl.disable.cache": "true",
            "fs.s3a.retry.throttle.limit": "2",
            "fs.s3a.retry.throttle.interval": "10ms",
        }
        for key, value in settings.items():
            session.conf.set(key, value)
        yield session, proxy


@nightly
def test_a_store_that_ignores_the_condition_is_refused(
    proxied: tuple[SparkSession, Any], s3: Objects
) -> None:
    session, proxy = proxied
    place = f"s3a://{BUCKET}/ignorant"
    proxy.decide = lambda _method, _path: "no condition"
    # The first trial leaves nothing behind that lets the second one pass.
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="CAP-LAKE: .*two writers create the same"):
            require_safe_commits(session, place)
    proxy.decide = lambda _method, _path: "none"
    require_safe_commits(session, place)
    # Nothing is left of the files that were written for it.
    assert s3.keys("ignorant/.") == []


@nightly
def test_what_is_there_is_not_tried_again(proxied: tuple[SparkSession, Any], s3: Objects) -> None:
    session, proxy = proxied
    s3.put("known/streams/orders/file", b"")
    proxy.requests.clear()
    require_safe_commits(session, f"s3a://{BUCKET}/known")
    assert proxy.requests["PUT"] == 0


@nightly
@pytest.mark.parametrize("fault", ["reset", "internal error", "slow down"])
def test_a_store_that_cannot_be_written_is_no_answer(
    proxied: tuple[SparkSession, Any], fault: Fault
) -> None:
    session, proxy = proxied
    proxy.decide = lambda method, _path: fault if method == "PUT" else "none"
    with pytest.raises(SystemFailureError, match="CAP-LAKE: cannot reach s3a://"):
        require_safe_commits(session, f"s3a://{BUCKET}/failing")


def test_a_listing_begins_at_the_entry_that_is_asked_for(
    proxied: tuple[SparkSession, Any], s3: Objects, told: str
) -> None:
    session, proxy = proxied
    jvm, table = cast(Any, session)._jvm, f"{told}/listed"
    hadoop = cast(Any, session)._jsparkSession.sessionState().newHadoopConf()
    store = jvm.capstan.delta.ConditionalS3LogStore(hadoop)

    def listed(version: int) -> list[str]:
        start = jvm.org.apache.hadoop.fs.Path(f"{table}/_delta_log/{version:020}.")
        actual = list(store.listFrom(start, hadoop))
        assert all(item.getLen() == 2 and item.getModificationTime() > 0 for item in actual)
        return [item.getPath().toString().removeprefix(f"{table}/_delta_log/") for item in actual]

    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        listed(0)
    names = [f"{version:020}.json" for version in range(1_200)]
    names[1_190:1_191] = [f"{1_190:020}.checkpoint.parquet", f"{1_190:020}.json"]
    for name in [*names, "_last_checkpoint", "_sidecars/part.parquet"]:
        s3.put(f"listed/_delta_log/{name}", b"{}")
    entries = [*names, "_last_checkpoint"]
    for version, lists in ((1_190, 1), (0, 2)):
        proxy.requests.clear()
        assert listed(version) == entries[version:]
        assert proxy.requests == {"LIST": lists}
    # Nothing that old: what comes after is asked for, and the log is there.
    assert listed(1_200) == ["_last_checkpoint"]
    # The same two facts without a JVM, where only the newest entries matter.
    s3.put("listed/_delta_log/_last_checkpoint", b'{"version": 1190}')
    assert places.is_table(table)
    assert places.newest_entry(table).split()[0] == names[-1]
    assert not places.is_table(f"{told}/none")
    assert places.newest_entry(f"{told}/none") == ""


def test_in_a_folder_one_creator_fails(spark: SparkSession, tmp_path: Path) -> None:
    """The same trial as for other schemes."""
    require_one_creator(spark, tmp_path.as_uri())
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".crc")]


def manager(session: SparkSession, folder: str) -> Any:
    """Files of a checkpoint, as Spark makes them."""
    jvm = cast(Any, session)._jvm
    hadoop = cast(Any, session)._jsparkSession.sessionState().newHadoopConf()
    hadoop.set(*next(iter(CHECKPOINT_FILES.items())))
    streaming = jvm.org.apache.spark.sql.execution.streaming
    return streaming.checkpointing.CheckpointFileManager.create(
        jvm.org.apache.hadoop.fs.Path(folder), hadoop
    )


def put(files: Any, path: Any, content: bytes, *, replaces: bool = False) -> None:
    stream = files.createAtomic(path, replaces)
    stream.write(content)
    stream.close()


def content(files: Any, path: Any) -> bytes:
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


@pytest.mark.parametrize("stored", [True, False])
def test_files_of_a_checkpoint_have_one_writer(
    proxied: tuple[SparkSession, Any], tmp_path: Path, stored: bool
) -> None:
    session, proxy = proxied
    folder = f"s3a://{BUCKET}/checkpoint/offsets" if stored else f"file://{tmp_path}/offsets"
    files, others = manager(session, folder), manager(session, folder)
    place = cast(Any, session)._jvm.org.apache.hadoop.fs.Path
    root, path = place(folder), place(f"{folder}/7")
    assert not files.exists(root)
    files.mkdirs(root)
    assert [files.exists(root), files.exists(path)] == [True, False]
    proxy.requests.clear()
    begun = others.createAtomic(path, False)
    put(files, path, b"one")
    requests = dict(proxy.requests)
    begun.write(b"two")
    with pytest.raises(Py4JJavaError, match="hadoop.fs.FileAlreadyExistsException"):
        begun.close()
    assert files.exists(path)
    assert content(files, path) == b"one"
    if stored:
        assert requests == {"PUT": 1}
    put(files, path, b"three", replaces=True)
    assert content(others, path) == b"three"
    left = files.createAtomic(place(f"{folder}/8"), False)
    left.write(b"half")
    left.cancel()
    names = [status.getPath().getName() for status in files.list(root)]
    # Spark itself forgets a hidden one in a folder.
    assert [name for name in names if stored or not name.startswith(".")] == ["7"]
    files.delete(path)
    files.delete(path)
    files.delete(root)
    if stored:
        # It had a folder, which a reseat of another process has deleted.
        assert files.exists(root)
        assert list(files.list(root)) == []
    assert not others.exists(path)


def test_a_file_of_a_checkpoint_whose_answer_is_lost_is_written_once(
    proxied: tuple[SparkSession, Any],
) -> None:
    session, proxy = proxied
    folder = f"s3a://{BUCKET}/lost-checkpoint"
    path = cast(Any, session)._jvm.org.apache.hadoop.fs.Path(f"{folder}/1")
    seen: set[str] = set()

    def lose_first(method: str, at: str) -> Fault:
        first = method == "PUT" and at not in seen
        seen.add(at)
        return "lose answer" if first else "none"

    proxy.decide = lose_first
    put(manager(session, folder), path, b"one")
    assert content(manager(session, folder), path) == b"one"


def test_a_log_store_without_its_jar_is_refused_by_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.spark.safe_commits._store", lambda _scheme, _spark: "com.none.It")
    with pytest.raises(InvalidRequestError, match="CAP-LAKE: Spark has no class com.none.It"):
        require_safe_commits(spark, "s3a://bucket/lake")


def test_a_hadoop_without_conditional_puts_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed_series().writes_s3:
        absent = "org.apache.hadoop.fs.AsInTheHadoopOfSpark40"
        monkeypatch.setattr("capstan.spark.safe_commits._CONDITIONAL", absent)
    with pytest.raises(InvalidRequestError, match="CAP-LAKE: .* only where there is none"):
        require_safe_commits(spark, "s3a://bucket/lake")


@nightly
def test_the_jar_is_what_its_source_compiles_to(tmp_path: Path) -> None:
    log_store_jar.build(tmp_path / "built.jar")
    assert filecmp.cmp(tmp_path / "built.jar", LOG_STORE_JAR, shallow=False)
