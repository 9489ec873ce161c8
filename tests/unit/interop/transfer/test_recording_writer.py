"""Batches of rows as files: each is there whole, or not at all."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pytest

from capstan.interop.timely import Lines
from capstan.interop.transfer import recording_writer
from capstan.interop.transfer.recording_format import Form, Format

FORM = Form.from_options(Format.JSONL, time_type="u64", record_type="string")
SCHEMA = pa.schema(
    [
        ("worker", pa.int32()),
        ("kind", pa.string()),
        ("stamp", pa.list_(pa.list_(pa.int64()))),
        ("updates", pa.list_(pa.struct([("time", pa.list_(pa.int64())), ("diff", pa.int64())]))),
        ("records", pa.int64()),
        ("data", pa.struct([("value", pa.string())])),
    ]
)


def rows(worker, *texts):
    """The rows of a worker that sends a text at each time."""
    for time, text in enumerate(texts):
        yield {"worker": worker, "kind": "messages", "stamp": [[time]], "records": 1}
        yield {"worker": worker, "data": {"value": text}}


def told(tmp_path, *given):
    batches = [pa.RecordBatch.from_pylist([row], SCHEMA) for item in given for row in item]
    actual = recording_writer.write(batches, str(tmp_path), FORM)
    return [row for batch in actual for row in batch.to_pylist()]


def test_each_worker_has_a_file(tmp_path):
    actual = told(tmp_path, rows(1, "a", "b"), rows(4, "c"))
    assert [(row["worker"], row["refused"]) for row in actual] == [(1, None), (4, None)]
    first = actual[0]
    assert (first["file"], first["events"], first["records"]) == ("worker-1.jsonl", 2, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker-1.jsonl", "worker-4.jsonl"]


def test_unreadable_events_leave_no_file(tmp_path, monkeypatch: pytest.MonkeyPatch):
    short = partial(Lines, FORM.minimum, FORM.types, longest=100)
    monkeypatch.setattr(Form, "encoding", lambda _, worker: short(worker=worker))
    actual = told(tmp_path, rows(1, "a"), rows(2, "b", "x" * 100), rows(3, "c"))
    assert [row["worker"] for row in actual] == [1, 2]
    refused = json.loads(actual[1]["refused"])
    assert refused["error"] == "CAP-FRAME-LENGTH"
    assert "event 1 cannot be written" in refused["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["worker-1.jsonl"]


@pytest.mark.parametrize(
    ("lacks", "facts"),
    [
        (1, {"seq": 0, "time": [0], "stored": 0, "promised": 1}),
        (3, {"seq": 1, "time": [1], "stored": 0, "promised": 1}),
        (0, {"seq": None, "time": None, "stored": 1, "promised": 0}),
    ],
)
def test_events_without_records_leave_no_file(tmp_path, lacks, facts):
    whole = list(rows(2, "a", "b"))
    actual = told(tmp_path, rows(1, "a"), whole[:lacks] + whole[lacks + 1 :], rows(3, "c"))
    assert [row["worker"] for row in actual] == [1, 2]
    refused = json.loads(actual[1]["refused"])
    assert refused["error"] == "CAP-TAPE"
    assert facts.items() <= refused.items()
    assert [path.name for path in tmp_path.iterdir()] == ["worker-1.jsonl"]
