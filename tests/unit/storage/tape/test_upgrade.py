"""Tapes that get the columns of stamps, and then the version that says so; without a JVM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from capstan.capture.batch.commit_events import CLOSING, append_statements
from capstan.core.times import PAIR, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.schema import records_schema
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.storage.tape.upgrade import take_stamps
from capstan.telemetry.instrumentation import subscribe
from capstan.verify import verify
from tests.support.jvmless_lake import go_on, lay_tape

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from capstan.storage.tape.tape import Tape

LINE = TimeType.of(t=Kind.BIGINT)
PAIRS = replace(TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT), order=PAIR)


def laid(root: Path, time_type: TimeType) -> tuple[Lake, Tape]:
    """A tape of a worker that has a record at its least time, and holds it."""
    lake = Lake.at(root)
    least = time_type.minimum
    lay_tape(lake, "s", ["a"], [least], least, time_type=time_type)
    pairs = time_type.order.lexicographic
    records = records_schema(time_type, arrow_writer.struct(n="long"), stamped=pairs)
    arrow_writer.create_table(lake.stream("s").records, records)
    return lake, open_tape(lake, "s", stamps=True)


def columns(tape: Tape) -> list[list[str]]:
    """The columns of its records and events."""
    paths = tape.paths.records, tape.paths.events
    return [delta.open_table(path).schema().to_arrow().names for path in paths]


def test_the_columns_of_stamps_come_before_the_version(tmp_path: Path) -> None:
    """Between the two, the tape is read and written as one of single times."""
    lake, tape = laid(tmp_path, LINE)
    before = columns(tape)
    reached: list[str] = []

    def dying(point: str, _facts: dict[str, Any]) -> None:
        if point == "tape.columns":
            raise InterruptedError(point)

    with pytest.raises(InterruptedError), subscribe(dying):
        take_stamps(tape)
    between = open_tape(lake, "s")
    assert columns(between) == [[*names, "stamp"] for names in before]
    go_on(lake, "s", [(0,), (1,)], (2,))
    # As the stream is closed, without the columns.
    ended = [(0, CLOSING, [(Time((2,)), -1)])]
    append_statements(between, ended, {0: 5}, {}, batch=1, commit=2)
    spark: Any = None
    assert verify(spark, lake, between, remember=False).valid
    of = between, newest_cut(between), [0], Region(Box.everything(LINE))
    assert sorted(each.time for each in index.messages(*of)) == [(0,), (0,), (1,)]
    with subscribe(lambda point, _: reached.append(point)):
        assert take_stamps(between).stamped
    assert reached == ["tape.columns", "tape.stamped"]
    after = open_tape(lake, "s", stamps=True)
    assert (after.stamped, columns(after)) == (True, columns(between))
    assert index.content_summary(after, *of[1:]) == index.content_summary(*of)
    assert take_stamps(after) == after


def test_a_tape_of_pairs_keeps_its_version(tmp_path: Path) -> None:
    """With that of stamps, an older Capstan would take its times for Products."""
    _, tape = laid(tmp_path, PAIRS)
    known = columns(tape)
    assert take_stamps(tape) == tape
    assert (format_of(tape.paths.events), columns(tape)) == (4, known)
