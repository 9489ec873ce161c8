"""Numbers of workers: of two captures that give out the same ones, one ends; without a JVM."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from capstan.capture import workers
from capstan.capture.workers import Roster
from capstan.declare import ByColumn
from capstan.errors import Fenced
from capstan.tape.lake import Lake
from capstan.tape.tape import newest_cut, open_tape
from capstan.testing.streams import little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from capstan.tape.tape import Tape
    from capstan.tape.transaction import Txn

TIME = pa.struct([("event", pa.timestamp("us", "UTC"))])
UPDATES = pa.list_(pa.struct([("time", TIME), ("diff", pa.int64())]))
EVENTS = pa.schema(
    [("worker", pa.int32()), ("time", TIME), ("updates", UPDATES),
     ("batch", pa.int64()), ("commit", pa.int64()), ("records", pa.int64())]
)  # fmt: skip
WORKERS = pa.schema([("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())])
STREAM = little_stream("/none", workers=ByColumn(column="place", labels=("a", "b")))


class Spark:
    """Makes no frame of rows; `append` takes them as they are."""

    def createDataFrame(self, rows: list[tuple[int, str, int]], _: object) -> pa.Table:
        columns = [list(column) for column in zip(*rows, strict=True)]
        return pa.table(columns, schema=WORKERS)


@pytest.fixture
def tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """A tape of one commit, on which worker 0 stands for `a`."""

    def append(rows: pa.Table, path: str, *, txn: Txn) -> str | None:
        last = deltalake.DeltaTable(path).transaction_version(txn.app)
        if last is not None and last >= txn.version:
            return None
        identity = deltalake.Transaction(txn.app, txn.version)
        properties = deltalake.CommitProperties(app_transactions=[identity])
        deltalake.write_deltalake(path, rows, mode="append", commit_properties=properties)
        return path

    monkeypatch.setattr(workers.delta, "append", append)
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
    append(
        Spark().createDataFrame([(0, "a", 0)], None), paths.workers, txn=workers.Txn("roster:s", 0)
    )
    return opened


def test_two_captures_of_one_checkpoint_never_open_one_label_twice(tape: Tape) -> None:
    one, other = (Roster.load(tape, newest_cut(tape)) for _ in range(2))
    opened, fresh = one.with_labels(STREAM, None)
    assert (fresh, opened.free) == ({1: "b"}, 2)
    opened.write_down(Spark(), tape, fresh)

    opened, fresh = other.with_labels(STREAM, None)

    with pytest.raises(Fenced, match="CAP-FENCED: stream s: commit 1 was written by another"):
        opened.write_down(Spark(), tape, fresh)
    assert workers.number_of_next(tape) == 2


def test_what_was_written_down_and_cut_off_opens_with_the_next_commit(tape: Tape) -> None:
    opened, fresh = Roster.load(tape, newest_cut(tape)).with_labels(STREAM, None)
    opened.write_down(Spark(), tape, fresh)

    again = Roster.load(tape, newest_cut(tape))

    assert again == opened
    assert again.with_labels(STREAM, None) == (again, {})
    wider = replace(STREAM, workers=ByColumn(column="place", labels=("a", "b", "c")))
    opened, fresh = again.with_labels(wider, None)
    opened.write_down(Spark(), tape, fresh)
    assert (fresh, opened.free, workers.number_of_next(tape)) == ({2: "c"}, 3, 3)


def test_who_has_looked_at_the_tape_two_commits_ago_opens_none(tape: Tape) -> None:
    cut = newest_cut(tape)
    later = replace(Roster.load(tape, cut), commit=1)
    later.write_down(Spark(), tape, {1: "b"})
    with pytest.raises(Fenced, match="CAP-FENCED: stream s: commit 1"):
        Roster.load(tape, cut)
