"""Drops of late records, which need no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import pyarrow as pa
import pytest

from capstan.capture import dead_letters
from capstan.capture.dead_letters import drop
from capstan.capture.drop_request import Drop
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.storage.lake import Lake
from capstan.storage.late import settled
from capstan.storage.late.late_rows import LateSelection, count_late
from capstan.storage.tape import feed
from capstan.storage.tape.tape import Tape, format_of, newest_cut, open_tape
from tests.support.bulk_tapes import lay_index

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
    with pytest.raises(InvalidRequestError, match=r"CAP-DROPPED.*batch 3 .*\(.*: none\)"):
        drop(NONE, lake, NAME, Drop("bob", undo=3))


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
    [entry] = settled.drops(tape, newest_cut(tape))
    assert (entry.detail["by"], entry.detail["records"]) == ("bob", 6)
    assert (format_of(tape.paths.events), len(feed.synthetic_batches(tape))) == (5, 1)
    # What the second one had written means nothing.
    drop(NONE, lake, NAME, Drop("bob", undo=entry.batch))
    assert sum(left(lake).values()) == 6


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
