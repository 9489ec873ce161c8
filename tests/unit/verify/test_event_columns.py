"""The columns of events, as a tape has them, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from capstan.core.times import Kind, TimeType
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.tape.schema import events_schema
from capstan.verify.event_columns import EventColumns

TIMES = TimeType.of(a=Kind.BIGINT, b=Kind.BIGINT)
MESSAGES = {"kind": "messages", "records": 1, "fingerprint": {"h1": 0, "h2": 0}}


def at(*coordinates: int | None) -> dict[str, int | None]:
    return dict(zip("ab", coordinates, strict=True))


def columns(*rows: dict[str, Any], stamped: bool = True) -> EventColumns:
    place = {"worker": 0, "batch": 0, "commit": 0}
    numbered = [{**place, "seq": seq, **row} for seq, row in enumerate(rows)]
    schema = arrow_schema(events_schema(TIMES, stamped=stamped))
    return EventColumns.of(pa.RecordBatch.from_pylist(numbered, schema), 2)


@pytest.mark.parametrize("stamped", [False, True])
def test_messages_under_one_time_are_not_special(*, stamped: bool) -> None:
    actual = columns({**MESSAGES, "time": at(1, 2)}, stamped=stamped)
    assert (actual.times, actual.special) == ([(1, 2)], {})
    assert not columns(stamped=stamped).special


def test_stamps_are_those_of_their_rows() -> None:
    both = [at(0, 1), at(1, 0)]
    actual = columns(
        {**MESSAGES, "time": at(5, 5)},
        {**MESSAGES, "time": at(0, 1), "stamp": both},
        {**MESSAGES, "stamp": []},
        {"kind": "progress", "updates": [{"time": at(0, 0), "diff": 1}]},
        {**MESSAGES, "time": at(2, 2), "stamp": [at(2, 2)] * 2},
    )
    assert actual.special == {1: ((0, 1), (1, 0)), 2: (), 4: ((2, 2), (2, 2))}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**MESSAGES}, "without a complete time"),
        ({**MESSAGES, "time": at(1, None)}, "without a complete time"),
        ({**MESSAGES, "stamp": [at(1, 1), at(1, 2)]}, "without a complete time"),
        ({**MESSAGES, "time": at(1, 1), "stamp": []}, "is not the first of its stamp"),
        ({**MESSAGES, "time": at(1, 1), "stamp": [at(1, 1)]}, "is not the first of its stamp"),
        ({**MESSAGES, "time": at(1, 2), "stamp": [at(1, 1), at(1, 2)]}, "is not the first"),
        ({**MESSAGES, "time": at(1, 1), "stamp": [at(1, 1), at(1, None)]}, "a null in its stamp"),
        ({**MESSAGES, "time": at(1, 1), "stamp": [at(1, 1), None]}, "a null in its stamp"),
        ({**MESSAGES, "stamp": [], "records": None}, "without a count of records"),
        ({"kind": "progress", "updates": [], "stamp": []}, "a progress event with a stamp"),
        ({"kind": "odd", "stamp": []}, "neither a progress nor a messages event"),
    ],
)
def test_faults_of_stamps(row: dict[str, Any], words: str) -> None:
    actual = columns({**MESSAGES, "time": at(0, 0)}, row)
    assert list(actual.special) == [1]
    assert words in str(actual.special[1])
