"""Files as batches of columns: none larger than a frame more than what is held at most."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capstan.core.protocol import Messages, Progress
from capstan.interop.timely import EventWriter
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.recording_format import Form, Format

MEBIBYTE = 2**20


def written(path, form, events):
    """A recording of worker 3, as the rows that name it."""
    with path.open("wb") as sink, EventWriter(sink, form.encoding(3)) as writer:
        for event in events:
            writer.push(event)
    rows = {"worker": [3], "path": [str(path)], "named": [3]}
    return [pa.RecordBatch.from_pydict(rows)]


def records(tmp_path, form, events):
    files = written(tmp_path / f"worker-3{form.format.suffix}", form, events)
    return list(recording_reader.records(files, form))


@pytest.mark.parametrize("form", Format)
def test_large_records_are_handed_over_by_their_bytes(tmp_path, form):
    given = Form.from_options(form, time_type="u64", record_type="string")
    events = [Messages.of((n,), [chr(97 + n % 26) * 3 * MEBIBYTE]) for n in range(45)]
    batches = records(tmp_path, given, events)
    assert max(batch.nbytes for batch in batches) < 68 * MEBIBYTE
    assert [batch.num_rows for batch in batches] == [22, 22, 1]
    table = pa.Table.from_batches(batches)
    assert table.column("pos").to_pylist() == list(range(45))
    assert table.column("batch").to_pylist() == list(range(45))
    assert [
        text[0] for text in table.column("data").combine_chunks().field("value").to_pylist()
    ] == [chr(97 + n % 26) for n in range(45)]


@pytest.mark.parametrize("form", Format)
def test_an_event_of_many_records_is_handed_over_in_parts(tmp_path, form):
    given = Form.from_options(form, time_type="u64", record_type="u64")
    many = Messages.of((5,), range(120_000))
    events = [Progress.of([((0,), 0)]), many, Messages.of((6,), []), Messages.of((7,), [1])]
    batches = records(tmp_path, given, events)
    assert max(batch.num_rows for batch in batches) == 50_000
    table = pa.Table.from_batches(batches)
    assert table.column("pos").to_pylist() == list(range(120_001))
    assert table.column("batch").to_pylist() == [1] * 120_000 + [3]
    assert table.column("data").combine_chunks().field("value").to_pylist() == [*range(120_000), 1]
