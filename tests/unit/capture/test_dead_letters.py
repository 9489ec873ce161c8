"""Drops of late records, which need no JVM."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import pyarrow as pa
import pytest

from capstan.capture import dead_letters
from capstan.capture.dead_letters import drop
from capstan.capture.drop_request import Drop
from capstan.capture.synthetic import synthetic_batch
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError, RangeLockedError
from capstan.replay.output.certificate import late_in
from capstan.storage.lake import Lake, is_table
from capstan.storage.late import settled
from capstan.storage.late.late_rows import LateSelection, chosen_late, count_late, late_by_cause
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.tape import Tape, format_of, newest_cut, open_tape
from capstan.storage.tape.upgrade import take_settled
from tests.support.bulk_tapes import HOUR, counting, lay_index
from tests.support.jvmless_lake import EVENT, lay_tape

NAME = "little"
TEXT = pa.string()
LATE = pa.schema(
    [
        ("reason", TEXT), ("worker", pa.int32()), ("batch", pa.int64()), ("pos", pa.int64()),
        ("time", pa.struct([("event", pa.timestamp("us", "UTC"))])),
        ("field", TEXT), ("error", TEXT), ("file", TEXT),
    ]
)  # fmt: skip
NONE: Any = None  # A session, which a drop has no use for.


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a tape of three batches, and six late records in five files."""
    lake = Lake.at(tmp_path)
    lay_index(lake, NAME, 3)
    rows = [
        {
            "reason": "malformed",
            "batch": 1,
            "pos": 0,
            "field": "n",
            "error": "is bad",
            "file": "/a/f",
        },
        {
            "reason": "malformed",
            "batch": 1,
            "pos": 1,
            "field": "n",
            "error": "is bad",
            "file": "/a/g",
        },
        {
            "reason": "malformed",
            "batch": 2,
            "pos": 0,
            "field": None,
            "error": "is none",
            "file": "/a/f",
        },
        {
            "reason": "no-time",
            "batch": 2,
            "pos": 1,
            "field": "at",
            "error": "is null",
            "file": None,
        },
        {"reason": "late", "batch": 1, "pos": 2},
        {"reason": "late", "batch": 2, "pos": 2},
    ]
    path = lake.stream(NAME).late
    deltalake.DeltaTable.create(path, LATE)
    # A file with one reason is counted by its log entry, unless some of its rows are dropped.
    for batch, reason in {(row["batch"], row["reason"]): None for row in rows}:
        part = [row for row in rows if (row["batch"], row["reason"]) == (batch, reason)]
        deltalake.write_deltalake(path, pa.Table.from_pylist(part, schema=LATE), mode="append")
    return lake


def left(lake: Lake) -> dict[str, int]:
    tape = open_tape(lake, NAME)
    return count_late(tape, newest_cut(tape))


@pytest.mark.parametrize(
    ("selection", "records"),
    [
        ({}, 6),
        ({"reason": "malformed"}, 3),
        ({"cause": "n"}, 2),
        ({"cause": "n is bad"}, 2),
        ({"cause": "is none"}, 1),
        ({"file": "f"}, 2),
        ({"file": "/a/g"}, 1),
        ({"reason": "malformed", "cause": "n", "file": "f"}, 1),
        ({"reason": "no-time", "file": "f"}, 0),
    ],
)
def test_the_chosen_ones_are_dropped(lake: Lake, selection: dict[str, str], records: int) -> None:
    done = drop(NONE, lake, NAME, Drop("ann", "no use", LateSelection(**selection)))
    assert done.records == records
    assert sum(left(lake).values()) == sum(done.left.values()) == 6 - records
    assert done.batch == (3 if records else None)
    assert drop(NONE, lake, NAME, Drop("ann", "no use", LateSelection(**selection))).records == 0


def test_a_drop_is_undone_as_a_whole(lake: Lake) -> None:
    before = left(lake)
    drop(NONE, lake, NAME, Drop("ann", "no use", LateSelection(reason="late")))
    drop(NONE, lake, NAME, Drop("ann", "no use"))
    assert left(lake) == {}
    done = drop(NONE, lake, NAME, Drop("bob", undo=3))
    assert (done.batch, done.records, dict(done.left)) == (5, 2, {"late": 2})
    drop(NONE, lake, NAME, Drop("bob", undo=4))
    assert left(lake) == before
    with pytest.raises(InvalidRequestError, match=r"CAP-DROPPED.*batch 5 .*\(.*: none\)"):
        drop(NONE, lake, NAME, Drop("bob", undo=5))


def test_an_undoing_can_be_repeated(lake: Lake) -> None:
    drop(NONE, lake, NAME, Drop("ann", "no use"))
    done = drop(NONE, lake, NAME, Drop("bob", undo=3))
    again = drop(NONE, lake, NAME, Drop("bob", undo=3))
    assert (done.records, again) == (6, replace(done, records=0))
    assert len(feed.synthetic_batches(open_tape(lake, NAME))) == 2


def claim(lake: Lake) -> None:
    """Let a capture begin a micro-batch."""
    feed.register_batch(open_tape(lake, NAME), BatchEntry(3, Origin.CAPTURE, "own", 3))


def close(lake: Lake) -> None:
    shutil.rmtree(lake.stream(NAME).root)
    lay_tape(lake, NAME, ["a"], [(0,), (1,)], None)
    rows = pa.Table.from_pylist([{"reason": "late", "batch": 0, "pos": 0}], schema=LATE)
    deltalake.write_deltalake(lake.stream(NAME).late, rows)


@pytest.mark.parametrize(("lay", "code"), [(claim, "CAP-HALF-DONE"), (close, "CAP-CLOSED")])
def test_a_drop_that_is_refused_writes_nothing(
    lake: Lake, lay: Callable[[Lake], None], code: str
) -> None:
    lay(lake)
    with pytest.raises(InvalidRequestError, match=code):
        drop(NONE, lake, NAME, Drop("ann", "no use"))
    paths = open_tape(lake, NAME).paths
    assert (format_of(paths.events), is_table(paths.settled)) == (2, False)


def test_an_idle_advance_beside_a_drop_refuses_it_not(lake: Lake) -> None:
    write = settled.write_settled

    def beside(tape: Tape, decision: str, rows: pa.Table) -> None:
        write(tape, decision, rows)
        detail = {"workers": [0], "event": 9 * HOUR}
        synthetic_batch.insert(NONE, tape, Origin.IDLE, lambda _: detail, "an idle source")

    with patch.object(settled, "write_settled", beside):
        done = drop(NONE, lake, NAME, Drop("ann", "no use"))
    assert (done.batch, done.records, dict(done.left)) == (4, 6, {})


def test_rows_of_many_batches_are_dropped_at_once(lake: Lake) -> None:
    tape = open_tape(lake, NAME)
    take_settled(tape)
    # Two of them are rows of the tape: the first malformed one, and the late one of batch 2.
    places = [{"batch": 1, "pos": 0, "reason": "malformed"}]
    places += [{"batch": number, "pos": 2, "reason": "late"} for number in range(2, 50_001)]
    settled.write_settled(tape, "many", pa.Table.from_pylist(places))
    detail = {"rows": "many", "records": len(places)}
    synthetic_batch.insert(NONE, tape, Origin.DROP, lambda _: detail, "dropping records")
    cut, expected = newest_cut(tape), {"malformed": 2, "late": 1, "no-time": 1}
    assert left(lake) == expected
    assert chosen_late(tape, cut, LateSelection()).num_rows == 4
    by_cause = sorted((row.reason, row.records) for row in late_by_cause(tape, cut))
    assert by_cause == [("late", 1), ("malformed", 1), ("malformed", 1), ("no-time", 1)]
    everything = Region(Box.everything(EVENT))
    assert late_in(tape, cut, (), everything, everyone=True) == Counter(expected)


def test_only_files_that_have_dropped_rows_are_read_to_count_the_others(lake: Lake) -> None:
    drop(NONE, lake, NAME, Drop("ann", "no use", LateSelection(reason="no-time")))
    with counting() as opened:
        assert left(lake) == {"malformed": 3, "late": 2}
    # Those of batch 2: each has rows with one reason.
    assert opened["late"] == 3


def test_of_two_drops_at_once_the_second_is_refused(lake: Lake) -> None:
    write = settled.write_settled

    def outrun(tape: Tape, decision: str, rows: pa.Table) -> None:
        write(tape, decision, rows)
        with patch.object(settled, "write_settled", write):
            dead_letters.drop.__wrapped__(NONE, lake, NAME, Drop("bob", "first"))  # type: ignore[attr-defined]

    with (
        patch.object(settled, "write_settled", outrun),
        pytest.raises(RangeLockedError, match="CAP-CONFLICT"),
    ):
        drop(NONE, lake, NAME, Drop("ann", "second"))
    tape = open_tape(lake, NAME)
    [entry] = settled.settling(tape, newest_cut(tape))
    assert (entry.detail["by"], entry.detail["records"]) == ("bob", 6)
    assert (format_of(tape.paths.events), len(feed.synthetic_batches(tape))) == (5, 1)
    # What the second one had written means nothing.
    drop(NONE, lake, NAME, Drop("bob", undo=entry.batch))
    assert sum(left(lake).values()) == 6


def test_a_number_is_taken_by_one_of_two_batches_that_do_other_things(lake: Lake) -> None:
    tape = open_tape(lake, NAME)
    first, second = (BatchEntry(3, Origin.DROP, detail={"rows": name}) for name in "ab")
    feed.register_batch(tape, first)
    feed.register_batch(tape, first)
    with pytest.raises(FencedError, match="CAP-FENCED"):
        feed.register_batch(tape, second)
    assert feed.synthetic_batches(tape) == (first,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"because": ""},
        {"because": " "},
        {"because": "x", "undo": 1},
        {"undo": 1, "selection": LateSelection(reason="late")},
    ],
)
def test_a_request_says_why_or_names_a_batch_alone(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-REQUEST"):
        Drop("ann", **wrong)
