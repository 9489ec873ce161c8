"""The output of a replay on another tape: a sound recording again, of the same records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from deltalake import DeltaTable

from capstan.capture.run import capture, close
from capstan.errors import InvalidRequestError
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.storage.delta import delta
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry.instrumentation import subscribe
from capstan.verify import verify
from tests.support.sample_streams import lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

NUMBERS = range(40)


class KilledError(Exception):
    pass


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


def ids(lake: Lake, name: str) -> list[int]:
    return sorted(pl.read_delta(open_tape(lake, name).paths.records)["data"].struct.field("id"))


def kill_at(point: str):
    def listener(reached: str, _facts: object) -> None:
        if reached == point:
            raise KilledError(point)

    return listener


@pytest.mark.parametrize("peers", [pytest.param(1, marks=pytest.mark.nightly), 4])
def test_a_recapture_goes_on_where_the_last_one_stood(
    spark: SparkSession, lake: Lake, source: Path, peers: int
) -> None:
    stream = little_stream(source)
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, stream)
    requested = RecaptureRequest("little", "copy", peers=peers)

    done = recapture(spark, lake, requested)

    # Number 39 is at 19:30; what is before 17:00 is complete.
    assert (done.records, done.workers, done.commit, done.unchanged) == (34, peers, 0, False)
    assert done.frontier == ["2024-05-01T17:00:00.000000Z"]
    copy = open_tape(lake, "copy")
    assert verify(spark, lake, copy, deep=True).valid
    again = recapture(spark, lake, requested)
    assert (again.unchanged, again.records, again.commit) == (True, 0, 0)

    lay(source, "1", rows(range(40, 60)))
    capture(spark, lake, stream)
    close(spark, lake, "little")
    last = recapture(spark, lake, requested)
    assert (last.records, last.commit, last.frontier) == (26, 1, [])
    verification = verify(spark, lake, copy, deep=True)
    assert verification.valid
    assert all(verdict.closed for verdict in verification.workers)
    assert ids(lake, "copy") == list(range(60))
    times = {
        name: pl.read_delta(open_tape(lake, name).paths.records).select("time", "data")
        for name in ("little", "copy")
    }
    key = pl.col("data").struct.field("id")
    assert times["copy"].sort(key).equals(times["little"].sort(key))


def test_chosen_workers_and_a_declaration_that_stays(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, little_stream(source))
    done = recapture(spark, lake, RecaptureRequest("little", "part", workers=("a", "c")))
    assert (done.workers, done.records) == (2, len([n for n in range(34) if n % 3 != 1]))
    for changed in (
        RecaptureRequest("little", "part", workers=("a",)),
        RecaptureRequest("little", "part", workers=("a", "c"), peers=3),
        RecaptureRequest("part", "little"),
    ):
        with pytest.raises(InvalidRequestError, match="CAP-DECLARED"):
            recapture(spark, lake, changed)
    with pytest.raises(InvalidRequestError, match="CAP-INTO-STREAM"):
        RecaptureRequest("little", "little")
    assert newest_cut(open_tape(lake, "part")).commit == 0


def test_a_copy_is_never_taken_back(spark: SparkSession, lake: Lake, source: Path) -> None:
    stream = little_stream(source)
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, stream)
    lay(source, "1", rows(range(40, 60)))
    capture(spark, lake, stream)
    requested = RecaptureRequest("little", "copy")
    recapture(spark, lake, requested)
    paths = open_tape(lake, "copy").paths
    known = [delta.version_of(path) for path in (paths.records, paths.events)]
    stands, older = "2024-05-02T03:00:00.000000Z", "2024-05-01T17:00:00.000000Z"

    with pytest.raises(
        InvalidRequestError, match=f"CAP-CUT: stream copy .*{stands}.*{older}"
    ) as refused:
        recapture(spark, lake, replace(requested, as_of=0))

    assert refused.value.hint.startswith("leave out --as-of")
    close(spark, lake, "copy")
    with pytest.raises(InvalidRequestError, match="CAP-CLOSED: stream copy is closed"):
        recapture(spark, lake, requested)
    assert delta.version_of(paths.records) == known[0]
    assert delta.version_of(paths.events) == known[1] + 1
    assert verify(spark, lake, open_tape(lake, "copy"), deep=True).valid


def test_a_column_that_the_stream_gains_is_gained_by_its_copy(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    narrow = "id BIGINT, place STRING, at TIMESTAMP, amount INT"
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, replace(stream, source=replace(stream.source, schema=narrow)))
    requested = RecaptureRequest("little", "copy")
    recapture(spark, lake, requested)
    lay(source, "1", rows(range(40, 60)))
    capture(spark, lake, stream)

    assert recapture(spark, lake, requested).records == 20

    copy = open_tape(lake, "copy")
    assert verify(spark, lake, copy, deep=True).valid
    data = pl.read_delta(copy.paths.records)["data"].struct.unnest()
    assert dict(data.filter(pl.col("note").is_not_null()).select("id", "note").iter_rows()) == {
        n: f"note {n}" for n in range(40, 54) if n % 5
    }


@pytest.mark.parametrize(
    "point",
    [
        # At the other points a driver is killed in tests/crash.
        pytest.param("recapture.workers", marks=pytest.mark.nightly),
        "recapture.records",
        pytest.param("recapture.events", marks=pytest.mark.nightly),
    ],
)
def test_what_was_cut_off_is_finished_at_the_cut_that_it_played(
    spark: SparkSession, lake: Lake, source: Path, point: str
) -> None:
    stream = little_stream(source)
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, stream)
    requested = RecaptureRequest("little", "copy", peers=2)
    with pytest.raises(KilledError), subscribe(kill_at(point)):
        recapture(spark, lake, requested)
    lay(source, "1", rows(range(40, 60)))
    capture(spark, lake, stream)
    if point == "recapture.records":
        # What maintenance commits to the copy is not taken for what the re-capture has written.
        records = DeltaTable(open_tape(lake, "copy").paths.records)
        records.alter.set_table_properties({"made.by": "another"}, raise_if_not_exists=False)

    while not recapture(spark, lake, requested).unchanged:
        pass

    copy = open_tape(lake, "copy")
    assert verify(spark, lake, copy, deep=True).valid
    # Number 59 is at 29:30 of the first day; what is before 27:00 is complete.
    assert ids(lake, "copy") == list(range(54))
    played = open_tape(lake, "little")
    now, then = (
        index.frontier_of(tape, index.worker_states(tape, newest_cut(tape)))
        for tape in (copy, played)
    )
    assert now == then


def test_a_recapture_older_than_the_log_is_refused(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay(source, "0", rows(NUMBERS))
    capture(spark, lake, little_stream(source))
    requested = RecaptureRequest("little", "copy")
    with pytest.raises(KilledError), subscribe(kill_at("recapture.records")):
        recapture(spark, lake, requested)
    path = open_tape(lake, "copy").paths.records
    table = DeltaTable(path)
    table.alter.set_table_properties({"made.by": "another"}, raise_if_not_exists=False)
    table.create_checkpoint()
    *old, _ = sorted(Path(path, "_delta_log").glob("*.json"))
    for entry in old:
        entry.unlink()
    before = ids(lake, "copy")
    with pytest.raises(InvalidRequestError, match="^CAP-HALF-DONE: stream copy: "):
        recapture(spark, lake, requested)
    assert ids(lake, "copy") == before
