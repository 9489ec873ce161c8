"""The checkpoint guard on tapes without a JVM: batches without rows before any worker."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.capture.batch.checkpoint_guard import Checkpoint, last_batch, validate
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Tape, open_tape

EVENTS = pa.schema([("worker", pa.int32()), ("batch", pa.int64()), ("commit", pa.int64())])
LATE = pa.schema([("batch", pa.int64()), ("reason", pa.string())])
FEED = pa.schema(
    [("batch", pa.int64()), ("origin", pa.string()), ("checkpoint", pa.string()),
     ("number", pa.int64()), ("detail", pa.string())]
)  # fmt: skip


def lay(root: Path, *, begun: int, ended: int, claimed: str = "own") -> Tape:
    """A tape without a commit, and a checkpoint with the given numbers of offsets and commits."""
    paths = Lake.at(root).stream("s")
    configuration = {
        "capstan.format": "2",
        "capstan.time": json.dumps({"coordinates": [{"name": "epoch", "kind": "bigint"}]}),
        "capstan.checkpoint": json.dumps({"identity": "own", "base": 0}),
    }
    deltalake.DeltaTable.create(
        paths.events, EVENTS, configuration=configuration, raise_if_key_not_exists=False
    )
    deltalake.DeltaTable.create(paths.late, LATE)
    claims = [
        {"batch": n, "origin": "capture", "checkpoint": claimed, "number": n} for n in range(begun)
    ]
    deltalake.write_deltalake(paths.feed, pa.Table.from_pylist(claims, schema=FEED))
    folder = Path(paths.checkpoint)
    for log, count in (("offsets", begun), ("commits", ended)):
        (folder / log).mkdir(parents=True)
        for number in range(count):
            (folder / log / str(number)).touch()
    (folder / "metadata").write_text(json.dumps({"id": "own"}), encoding="utf-8")
    return open_tape(Lake.at(root), "s")


@pytest.mark.parametrize(("begun", "ended"), [(1, 1), (1, 0), (3, 3), (3, 2)])
def test_empty_batches_may_precede_the_first_worker(tmp_path: Path, begun: int, ended: int) -> None:
    tape = lay(tmp_path, begun=begun, ended=ended)
    assert validate(tape) == Checkpoint("own", 0)
    assert last_batch(tape) == ended - 1


def test_batches_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    tape = lay(tmp_path, begun=3, ended=3, claimed="other")
    with pytest.raises(
        InvalidRequestError, match="CAP-CHECKPOINT.* is at batch 2, but the tape is at batch -1"
    ):
        validate(tape)


def test_after_the_first_commit_every_batch_must_be_on_tape(tmp_path: Path) -> None:
    tape = lay(tmp_path, begun=3, ended=3)
    event = pa.Table.from_pylist([{"worker": 0, "batch": 0, "commit": 0}], schema=EVENTS)
    deltalake.write_deltalake(tape.paths.events, event, mode="append")
    with pytest.raises(
        InvalidRequestError, match="CAP-CHECKPOINT.* is at batch 2, but the tape is at batch 0"
    ):
        validate(tape)
