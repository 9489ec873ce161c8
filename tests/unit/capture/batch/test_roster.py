"""Worker numbers: of two captures that assign the same numbers, one is fenced; without a JVM."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from capstan.capture.batch import roster as workers
from capstan.capture.batch.micro_batch import BatchScan, scan_batch
from capstan.capture.batch.roster import Roster
from capstan.core.config import ByColumn, ByKey, ByPartition, EventTime
from capstan.errors import FencedError, InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.tape.feed import Consumed
from capstan.storage.tape.tape import append_workers, newest_cut, open_tape
from tests.support.sample_streams import little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from capstan.storage.tape.tape import Tape

TIME = pa.struct([("event", pa.timestamp("us", "UTC"))])
UPDATES = pa.list_(pa.struct([("time", TIME), ("diff", pa.int64())]))
EVENTS = pa.schema(
    [("worker", pa.int32()), ("time", TIME), ("updates", UPDATES),
     ("batch", pa.int64()), ("commit", pa.int64()), ("records", pa.int64())]
)  # fmt: skip
WORKERS = pa.schema([("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())])
STREAM = little_stream("/none", workers=ByColumn(column="place", labels=("a", "b")))


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    """A tape with one commit, on which worker 0 has the label `a`."""

    paths = Lake.at(tmp_path).stream("s")
    time = {"coordinates": [{"name": "event", "kind": "timestamp"}]}
    deltalake.DeltaTable.create(
        paths.events,
        EVENTS,
        configuration={"capstan.format": "2", "capstan.time": json.dumps(time)},
        raise_if_key_not_exists=False,
    )
    events = [{"worker": 0, "updates": [], "batch": 0, "commit": 0}]
    deltalake.write_deltalake(
        paths.events, pa.Table.from_pylist(events, schema=EVENTS), mode="append"
    )
    deltalake.DeltaTable.create(paths.workers, WORKERS)
    opened = open_tape(Lake.at(tmp_path), "s")
    assert append_workers(opened, {0: "a"}, 0, number=0)
    return opened


def test_concurrent_captures_open_each_label_once(tape: Tape) -> None:
    one, other = (Roster.load(tape, newest_cut(tape)) for _ in range(2))
    opened, fresh = one.with_new_workers(STREAM, ())
    assert (fresh, opened.free) == ({1: "b"}, 2)
    opened.register(tape, fresh)

    opened, fresh = other.with_new_workers(STREAM, ())

    with pytest.raises(FencedError, match="CAP-FENCED: stream s: commit 1 was written by another"):
        opened.register(tape, fresh)
    assert workers.next_worker_number(tape) == 2


def test_interrupted_workers_open_with_the_next_commit(tape: Tape) -> None:
    opened, fresh = Roster.load(tape, newest_cut(tape)).with_new_workers(STREAM, ())
    opened.register(tape, fresh)

    again = Roster.load(tape, newest_cut(tape))

    assert again == opened
    assert again.with_new_workers(STREAM, ()) == (again, {})
    wider = replace(STREAM, workers=ByColumn(column="place", labels=("a", "b", "c")))
    opened, fresh = again.with_new_workers(wider, ())
    opened.register(tape, fresh)
    assert (fresh, opened.free, workers.next_worker_number(tape)) == ({2: "c"}, 3, 3)


def test_a_stale_roster_cannot_register_workers(tape: Tape) -> None:
    cut = newest_cut(tape)
    later = replace(Roster.load(tape, cut), commit=1)
    later.register(tape, {1: "b"})
    with pytest.raises(FencedError, match="CAP-FENCED: stream s: commit 1"):
        Roster.load(tape, cut)


class TestLabels:
    def test_too_many_workers_are_refused(
        self, tape: Tape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers, "MAX_WORKERS", 3)
        roster = Roster.load(tape, newest_cut(tape))
        column = little_stream("/none")
        assert roster.with_new_workers(column, {"a", "b", "c"})[1] == {1: "b", 2: "c"}
        for by, printed in (
            (ByColumn("place"), "CAP-WORKERS.*column place has more than 3 values"),
            (
                ByColumn("place", ("a", "b", "c", "d")),
                "CAP-WORKERS.*column place has more than 3 values",
            ),
            (ByPartition("place"), "CAP-WORKERS.*column place has more than 3 values"),
            (ByPartition(), "CAP-WORKERS.*the source has more than 3 partitions"),
        ):
            with pytest.raises(InvalidRequestError, match=printed) as refused:
                roster.with_new_workers(replace(column, workers=by), {"b", "c", "d"})
            assert ("in workers.labels;" in refused.value.hint) == isinstance(by, ByColumn)

    def test_rows_are_read_only_if_new_labels_are_possible(self) -> None:
        def found(by: object, *consumed: Consumed) -> BatchScan | None:
            stream = replace(STREAM, workers=by)  # type: ignore[arg-type]
            return scan_batch(None, stream, consumed, {"web/0", "web/1"})  # type: ignore[arg-type]

        web = [Consumed(f"web/{number}", 0, 9) for number in range(3)]
        assert found(ByKey(columns=("id",), count=2), Consumed()) is None
        assert found(STREAM.workers, Consumed()) is None
        assert found(ByPartition(), *web[:2]) is None
        for by, consumed in (
            (ByColumn("place"), web[:2]),
            (ByPartition("place"), web[:2]),
            (ByPartition(), web),
            (ByPartition(), [Consumed(files=("/a/b",))]),
            (ByPartition(), [Consumed()]),
        ):
            with pytest.raises(AttributeError, match="where"):
                found(by, *consumed)

    def test_time_ranges_exclude_late_and_ahead_records(self) -> None:
        time = EventTime(
            column="at", every=timedelta(hours=1), max_ahead=timedelta(microseconds=10)
        )
        some = BatchScan(frozenset(), 5, 30)
        for seen, begun, none in (
            (20, None, True),
            (19, None, False),
            (None, 20, True),
            (0, 20, True),
            (20, 0, True),
            (None, None, False),
        ):
            assert some.has_none_ahead(time, seen, begun) == none
        assert some.has_none_late([5, 4])
        assert not some.has_none_late([4, 6])
        without = BatchScan(frozenset("a"), None, None)
        assert without.has_none_late([6])
        assert without.has_none_ahead(time, None, None)
