"""S3, with a real server: a source there, and a lake there, are as those in folders.

What needs `make s3 objects` is nightly.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import deltalake
import polars
import pyarrow as pa
import pytest

from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import capture
from capstan.capture.source.source import read_source
from capstan.errors import InvalidRequestError
from capstan.jobs import handlers
from capstan.jobs.main import main as run_job
from capstan.storage import lake as places
from capstan.storage.delta import delta
from capstan.storage.job_attempts import JobAttempt, clear_attempts
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support import lake_contents, small_stream
from tests.support.docs import blocks, page
from tests.support.driver_actions import act
from tests.support.s3_server import BUCKET, Objects, objects
from tests.support.sample_streams import NAME, lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.core.config import Stream

nightly = pytest.mark.nightly


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(tmp_path_factory.mktemp("objects")) as actual:
        yield actual


@pytest.fixture(scope="module")
def reached(spark: SparkSession, s3: Objects) -> SparkSession:
    """A session that knows the way to S3."""
    session = spark.newSession()
    for key, value in s3.settings.items():
        session.conf.set(key, value)
    return session


@pytest.fixture
def told(s3: Objects, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket, which this process knows the way to as well."""
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{BUCKET}"


def far_stream(key: str, folder: Path) -> Stream:
    stream = little_stream(folder)
    return replace(stream, source=replace(stream.source, path=f"s3a://{BUCKET}/{key}"))


@nightly
def test_files_there_are_captured_as_files_here_are(
    reached: SparkSession, s3: Objects, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    for number in range(3):
        lay(files, f"part-{number}", rows(range(20 * number, 20 * number + 20)))
    s3.put_folder("flights", files)
    near, far = Lake.at(tmp_path / "near"), Lake.at(tmp_path / "far")
    stream = far_stream("flights", files)
    capture(reached, near, little_stream(files))
    assert capture(reached, far, stream).batches == 3
    assert lake_contents.tape(far) == lake_contents.tape(near)
    # What comes later is captured once, and what was captured is not captured again.
    lay(files, "part-3", rows(range(60, 70)))
    s3.put("flights/part-3.parquet", (files / "part-3.parquet").read_bytes())
    capture(reached, near, little_stream(files))
    actual = capture(reached, far, stream)
    assert (actual.batches, actual.fed) == (1, 10)
    assert lake_contents.tape(far) == lake_contents.tape(near)
    lake_contents.require_sound(reached, far, NAME)
    consumed = [json.loads(row)["files"] for row in lake_contents.feed(far, NAME)]
    expected = [[f"{stream.source.path}/part-{number}.parquet"] for number in range(4)]
    assert sorted(consumed) == expected


@nightly
def test_a_source_in_a_bucket_is_reconciled(
    reached: SparkSession, s3: Objects, tmp_path: Path
) -> None:
    files, lake = tmp_path / "files", Lake.at(tmp_path / "lake")
    for number in range(3):
        lay(files, f"part-{number}", rows(range(20 * number, 20 * number + 20)))
    s3.put_folder("compared", files)
    stream = far_stream("compared", files)
    capture(reached, lake, stream)
    tape = open_tape(lake, NAME)
    actual = reconcile(reached, tape, stream, deep=True)
    assert (actual.agrees, actual.batches, actual.records) == (True, 3, 60)
    s3.put("compared/part-1.parquet", (files / "part-2.parquet").read_bytes())
    s3.delete("compared/part-2.parquet")
    actual = reconcile(reached, tape, stream, deep=True)
    assert [(finding.batch, finding.kind) for finding in actual.findings] == [(1, "changed")]
    assert (actual.batches, actual.gone) == (2, 1)


@nightly
def test_a_folder_there_with_nothing_in_it_is_no_source(
    reached: SparkSession, s3: Objects, tmp_path: Path
) -> None:
    stream = far_stream("nothing", tmp_path)
    stream = replace(stream, source=replace(stream.source, schema=None))
    with pytest.raises(
        InvalidRequestError, match=r"CAP-SOURCE: .*s3a://capstan-tests/nothing"
    ) as refused:
        read_source(reached, stream)
    assert refused.value.hint == "check source in streams.yaml"


@nightly
def test_what_lies_there_is_read_and_written_without_a_jvm(told: str) -> None:
    root = f"{told}/plain"
    # None of these is what a URI would take it for.
    names = ["a b", "a%20b", "a?b", "a#b", "at=2024-01-01 00%3A00"]
    for name in names:
        places.write_text(f"{root}/{name}/file", name)
    assert places.children(root) == sorted(names)
    assert [places.read_text(f"{root}/{name}/file") for name in names] == names
    sizes = places.sizes_of([f"{root}/{name}/file" for name in [*names, "none"]])
    assert list(sizes.values()) == [*map(len, names), None]
    assert places.size_of(root) == sum(map(len, names))
    places.delete_folder(f"{root}/a b")
    assert not places.exists(f"{root}/a b/file")
    assert places.exists(f"{root}/a%20b/file")

    table = f"{root}/table"
    assert not places.is_table(table)
    for number in range(2):
        entry = places.newest_entry(table)
        deltalake.write_deltalake(table, pa.table({"n": [number]}), mode="append")
        assert places.newest_entry(table) > entry
    assert places.is_table(table)
    assert delta.version_of(table) == 1
    assert [commit.version for commit in delta.history(table)] == [1, 0]
    assert sum(map(len, (delta.added_files(table, version) for version in range(2)))) == 2
    assert sorted(delta.open_table(table).to_pyarrow_table()["n"].to_pylist()) == [0, 1]


@nightly
def test_jobs_leave_their_results_there(told: str) -> None:
    places.write_text(f"{told}/jobs-lake/labels.json", "{}")
    lake = Lake.at(f"{told}/jobs-lake")
    request = ["--lake", lake.root, "--attempt", "a"]
    attempt = JobAttempt(lake, "a")
    attempt.prepare({"stream": "nowhere"}, "streams: {}\n")
    assert run_job(handlers.verify, request) == 2
    actual = attempt.outcome()
    assert actual is not None
    assert (actual.exit_code, actual.report["error"]) == (2, "CAP-STREAM")
    attempt.begin()
    assert (attempt.outcome(), attempt.request()) == (None, '{"stream": "nowhere"}')
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert clear_attempts(lake, tomorrow, timedelta(days=2)) == []
    assert clear_attempts(lake, tomorrow, timedelta(hours=1)) == ["a"]
    assert places.children(f"{lake.root}/jobs") == []


@nightly
def test_a_lake_there_is_as_one_here(
    reached: SparkSession, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_stream.feed(tmp_path / "source")
    lake = Lake.at(f"{told}/lake")
    arguments = {"lake": lake.root, "source": str(tmp_path / "source")}
    fed = sum(len(small_stream.rows_of(number)) for number in range(small_stream.FILES))
    actual = act(reached, "capture", arguments)
    assert (actual["batches"], actual["fed"]) == (small_stream.FILES, fed)
    assert lake.streams() == [small_stream.NAME]
    held = []
    for request in (small_stream.BEFORE, small_stream.STAGED):
        act(reached, "replay", {**arguments, "request": request})
        held.append(lake_contents.table(lake, "staged"))
    assert held[0]["rows"] != held[1]["rows"]
    act(reached, "rollback", arguments)
    assert lake_contents.table(lake, "staged") == held[0]
    tape = lake_contents.tape(lake)
    act(reached, "maintain", {**arguments, "sizes": {}})
    assert lake_contents.tape(lake) == tape
    lake_contents.require_sound(reached, lake)
    # Others read the tables there, with the same variables.
    table = lake.table("staged")
    count = len(lake_contents.rows(table))
    [program] = blocks(page("deployment"), "python")
    known: dict[str, Any] = {}
    exec(program.replace("s3a://bucket/lake/tables/orders", table), known)
    assert known["orders"].select(polars.len()).collect().item() == count > 0
    assert f" {count} " in capsys.readouterr().out
