"""A tape of nested times whose frontier has several elements: played, followed, recorded again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from capstan.core.protocol import Messages
from capstan.core.times import MutableAntichain, complete
from capstan.errors import IncompleteError
from capstan.interop.timely import open_recording
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.destination_tape import add_workers, open_or_create_tape
from capstan.interop.transfer.import_files import counted_events
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta import delta
from capstan.storage.tape import index as summary
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import append_events, newest_cut, open_tape
from capstan.verify import verify
from tests.support.reference_checker import check
from tests.support.sample_streams import declared, little_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.protocol import Event
    from capstan.core.times import Antichain
    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape

CASE = Path(__file__).parent.parent / "conformance" / "timely" / "d1_product_w2"
FORM = Form.of_folder(CASE, Format.TIMELY)
NOTHING = declared(little_stream(Path("nowhere")))
Recorded = dict[int, list["Event"]]
Line = tuple[int, int, int]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """The events of each worker."""
    return {
        recording.worker: list(open_recording(Path(recording.path), FORM.encoding(None)))
        for recording in find_recordings(CASE, Format.TIMELY)
    }


def half(recorded: Recorded) -> Recorded:
    return {worker: events[: len(events) // 2] for worker, events in recorded.items()}


def frontier_of(recorded: Recorded) -> Antichain:
    """Where recordings stand together, as the reference says."""
    held = MutableAntichain()
    for events in recorded.values():
        held.update(check(events, FORM.time_type.minimum).holdings)
    return held.frontier


def records_of(recorded: Recorded, frontier: Antichain) -> list[Line]:
    """The records whose times are complete, each with its time."""
    return sorted(
        (*event.time, record)
        for events in recorded.values()
        for event in events
        if isinstance(event, Messages) and complete(frontier, event.time)
        for record in event.data or ()
    )


def played(lake: Lake, table: str) -> list[Line]:
    """The rows of a target, as `records_of` has them."""
    rows = pl.read_delta(lake.table(table)).select(pl.col("_time").struct.unnest(), "value")
    return sorted(rows.rows())


def lay(spark: SparkSession, tape: Tape, commit: int, after: Recorded, recorded: Recorded) -> None:
    """Put events on tape in one commit, as a listener does; those of `after` are there."""
    first = sum(map(len, after.values()))
    placed = [
        (worker, seq, first + place, event)
        for place, (worker, seq, event) in enumerate(
            (worker, seq, event)
            for worker, events in recorded.items()
            for seq, event in enumerate(events)
            if seq >= len(after.get(worker, ()))
        )
    ]
    schema = recording_reader.record_schema(FORM)
    batches = [
        recording_reader.record_batch(
            schema, FORM, worker, 0,
            [(b, e) for w, _, b, e in placed if w == worker and isinstance(e, Messages)],
        )
        for worker in recorded
    ]  # fmt: skip
    delta.append(spark.createDataFrame(pa.Table.from_batches(batches)), tape.paths.records)
    index = spark.createDataFrame(
        pa.Table.from_batches([recording_reader.event_batch(FORM.time_type, placed)])
    )
    records = delta.load(spark, tape.paths.records).where(f"batch >= {first}")
    append_events(tape, counted_events(index, records, commit).coalesce(1), commit, {})


def test_regions_under_an_antichain_replay_and_recapture(
    spark: SparkSession, lake: Lake, recorded: Recorded
) -> None:
    begun = half(recorded)
    frontier = frontier_of(begun)
    assert len(frontier) > 5
    tape = open_or_create_tape(spark, lake, "loops", FORM, TapeSettings(), ValueError())  # type: ignore[arg-type]
    add_workers(tape, recorded)
    lay(spark, tape, 0, {}, begun)
    assert verify(spark, lake, tape, deep=True).valid
    reported = [list(time) for time in frontier]
    first = records_of(begun, frontier)
    # More is on tape than may be played.
    assert 0 < len(first) < len(records_of(begun, frontier_of({})))

    # A range that reaches beyond is not complete; what is complete of it can be had.
    requested = Request("loops", "part", until="t1=40")
    with pytest.raises(IncompleteError) as early:
        replay(spark, lake, NOTHING, requested)
    assert early.value.fields["frontier"] == reported
    partial = Request("loops", "part", until="t1=40", partial=True)
    actual = replay(spark, lake, NOTHING, partial).to_json()
    assert (actual["complete"], actual["frontier"]) == (False, reported)
    assert played(lake, "part") == [record for record in first if record[1] < 40]

    followed = Request("loops", "all", follow="nightly")
    assert replay(spark, lake, NOTHING, followed).to_json()["records"] == len(first)
    assert played(lake, "all") == first
    copied = RecaptureRequest("loops", "copy", peers=3)
    done = recapture(spark, lake, copied)
    assert (done.records, done.frontier) == (len(first), reported)
    assert recapture(spark, lake, copied).unchanged
    copy = open_tape(lake, "copy")
    states = summary.worker_states(copy, newest_cut(copy))
    assert [state.frontier for state in states] == [frontier] * 3

    lay(spark, tape, 1, begun, recorded)
    everything = records_of(recorded, frontier_of(recorded))
    rest = replay(spark, lake, NOTHING, followed).to_json()
    assert rest["records"] == len(everything) - len(first)
    assert played(lake, "all") == everything
    assert replay(spark, lake, NOTHING, followed).unchanged
    last = recapture(spark, lake, copied)
    assert (last.records, last.frontier) == (len(everything) - len(first), [])
    verification = verify(spark, lake, copy, deep=True)
    assert verification.valid
    assert all(verdict.closed for verdict in verification.workers)
    copied_rows = pl.read_delta(copy.paths.records).select(
        pl.col("time").struct.unnest(), pl.col("data").struct.field("value")
    )
    assert sorted(copied_rows.rows()) == everything
