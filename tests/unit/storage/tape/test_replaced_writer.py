"""A writer whose checkpoint was replaced: it can claim, open and commit nothing any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from capstan.errors import FencedError
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.lake import Lake
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.tape import (
    append_few_events,
    append_workers,
    newest_cut,
    open_tape,
    replaced,
)
from tests.support.jvmless_lake import lay_tape

if TYPE_CHECKING:
    from pathlib import Path


def test_a_writer_whose_checkpoint_was_replaced_is_shut_out(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", ["a"], [(0,)], (1,))
    tape = open_tape(lake, "s")
    schema = pa.schema(delta.open_table(tape.paths.events).schema().to_arrow())
    rows = [{"worker": 0, "seq": 9, "kind": "progress", "updates": [], "batch": 1, "commit": 1}]
    event = pa.Table.from_pylist(rows, schema=schema)
    old, new = replaced(tape, "old"), replaced(tape, "new")

    feed.register_batch(tape, BatchEntry(1, Origin.CAPTURE, "old", 1))
    for path in (tape.paths.events, tape.paths.workers, tape.paths.feed):
        for _ in range(2):
            arrow_writer.commit_transaction(path, old)
    before = [delta.version_of(path) for path in (tape.paths.events, tape.paths.feed)]

    with pytest.raises(FencedError, match="CAP-FENCED: stream s: commit 1"):
        append_few_events(tape, event, 1, {}, old)
    with pytest.raises(FencedError, match="CAP-FENCED: stream s: batch 2"):
        feed.register_batch(tape, BatchEntry(2, Origin.CAPTURE, "old", 2))
    assert not append_workers(tape, {1: "b"}, 1, number=1, unless=old)
    assert [delta.version_of(path) for path in (tape.paths.events, tape.paths.feed)] == before

    feed.register_batch(tape, BatchEntry(2, Origin.CAPTURE, "new", 0))
    assert append_workers(tape, {1: "b"}, 1, number=1, unless=new)
    append_few_events(tape, event, 1, {}, new)
    assert newest_cut(tape).commit == 1
