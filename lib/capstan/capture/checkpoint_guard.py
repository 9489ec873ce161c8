"""The checkpoint guard: Structured Streaming's batch numbers must match those of the tape.

A lost or replaced checkpoint restarts batch numbers. Delta would mistake the batches for repeats
and skip them silently. So before a query starts, the tape's last batch must equal the checkpoint's
last batch or be one behind it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError
from capstan.storage import arrow_writer, delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import (
    children,
    delete_file,
    delete_folder,
    exists,
    is_table,
    read_text,
    write_text,
)
from capstan.storage.tape import feed
from capstan.storage.tape.tape import Tape, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = "capstan.checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a tape.

    Attributes:
        identity: The id that Structured Streaming gave it.
        base: The tape's number of its batch 0.
        shift: The number of synthetic batches since; it is added to the numbers of later batches.
    """

    identity: str
    base: int
    shift: int = 0

    def number(self, batch: int) -> int:
        """The tape's number for a future batch of the checkpoint."""
        return self.base + self.shift + batch


def validate(tape: Tape) -> Checkpoint:
    """Check the tape's checkpoint and return it; a new tape gets one.

    Raises:
        InvalidRequestError: `CAP-CHECKPOINT` for a missing, foreign or outdated checkpoint.
    """
    known = _known(tape)
    identity = _identity(tape)
    if known is None:
        identity = identity or _write_identity(tape)
        return _remember(tape, Checkpoint(identity, 0))
    if identity is None:
        raise _checkpoint_error(tape, "is missing")
    if identity != known.identity:
        raise _checkpoint_error(tape, "is not the one that wrote this tape")
    known = replace(known, shift=_inserted(tape, known.base))
    on_tape = last_batch(tape) - known.number(0)
    offsets, commits = _last(tape, "offsets"), _last(tape, "commits")
    if not (on_tape == offsets or (on_tape == offsets - 1 and commits == offsets - 1)):
        raise _checkpoint_error(tape, f"is at batch {offsets}, but the tape is at batch {on_tape}")
    return known


def replace_checkpoint(spark: SparkSession, tape: Tape) -> Checkpoint:
    """Give the tape a new checkpoint whose batch numbers continue those of the tape.

    Rows of an incomplete batch are not on the tape and are deleted. The source is captured again
    from its start, so it must offer only records that are not on the tape yet.
    """
    last = newest_cut(tape).batch
    # The checkpoint goes before any row, and its identity first. A capture that resumes after an
    # interruption here must not take it for a checkpoint whose rows Delta has.
    delete_file(_identity_path(tape))
    delete_folder(tape.paths.checkpoint)
    for path in (tape.paths.records, tape.paths.late, tape.paths.feed):
        if is_table(path):
            delta.delete_rows(spark, path, f"batch > {last}")
    return _remember(tape, Checkpoint(_write_identity(tape), last + 1))


def last_batch(tape: Tape) -> int:
    """The last micro-batch that wrote to the tape or to `late`, or ended without rows; else -1."""
    late, cut = delta.open_table(tape.paths.late).get_add_actions(flatten=True), newest_cut(tape)
    # Without workers, a batch without rows leaves no statement on the tape.
    empty = _last_finished(tape) if cut.commit < 0 else -1
    return max([cut.batch, empty, *delta.stat(late, "max.batch")])


def _last_finished(tape: Tape) -> int:
    """The last batch in the feed that the tape's checkpoint marks as finished; -1 without one."""
    known, commits = _known(tape), _last(tape, "commits")
    return max(
        (
            entry.batch
            for entry in feed.entries_from(tape, 0)
            if known is not None
            and entry.checkpoint == known.identity
            and entry.number is not None
            and entry.number <= commits
        ),
        default=-1,
    )


def transaction(tape: Tape, identity: str, batch: int) -> Txn:
    """The transaction of a batch's records and late rows; its version is the batch number."""
    return Txn(f"capture:{tape.name}:{identity}", batch)


def require_no_partial_batch(tape: Tape, operation: str) -> None:
    """Check that no micro-batch is incomplete.

    Raises:
        InvalidRequestError: `CAP-HALF-DONE`, saying that `operation` has to wait.
    """
    known = _known(tape)
    # Late rows are written before events, so they do not make a batch complete.
    if known is None or _last(tape, "offsets") <= _last(tape, "commits"):
        return
    # Records are written first: a batch without them has started but written nothing.
    last = newest_cut(tape).batch
    app = transaction(tape, known.identity, last).app
    written = delta.open_table(tape.paths.records).transaction_version(app)
    if written is not None and written > last:
        raise half_done(tape, operation)


def half_done(tape: Tape, operation: str) -> InvalidRequestError:
    """The error for an operation that must wait until a micro-batch ends as it began."""
    return InvalidRequestError(
        "CAP-HALF-DONE",
        f"stream {tape.name}: {operation} has to wait, the last micro-batch is incomplete",
        f"complete it with `capstan capture {tape.name}` and the previous configuration",
        stream=tape.name,
    )


def _inserted(tape: Tape, base: int) -> int:
    """The number of synthetic batches on the tape from batch `base` on."""
    last = newest_cut(tape).batch
    return sum(base <= entry.batch <= last for entry in feed.synthetic_batches(tape))


def _known(tape: Tape) -> Checkpoint | None:
    text = delta.open_table(tape.paths.events).metadata().configuration.get(_PROPERTY)
    return Checkpoint(**json.loads(text)) if text else None


def _remember(tape: Tape, checkpoint: Checkpoint) -> Checkpoint:
    text = json.dumps({"identity": checkpoint.identity, "base": checkpoint.base})
    arrow_writer.set_properties(tape.paths.events, {_PROPERTY: text})
    return checkpoint


def _identity(tape: Tape) -> str | None:
    path = _identity_path(tape)
    return str(json.loads(read_text(path))["id"]) if exists(path) else None


def _write_identity(tape: Tape) -> str:
    # Spark adopts the query id that it finds here, so the id is known before the first batch.
    identity = str(uuid.uuid4())
    write_text(_identity_path(tape), json.dumps({"id": identity}))
    return identity


def _identity_path(tape: Tape) -> str:
    return f"{tape.paths.checkpoint}/metadata"


def _last(tape: Tape, log: str) -> int:
    names = children(f"{tape.paths.checkpoint}/{log}")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _checkpoint_error(tape: Tape, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CHECKPOINT",
        f"stream {tape.name}: the checkpoint at {tape.paths.checkpoint} {problem}",
        "restore the right checkpoint from a backup; or, if the source now offers only records "
        f"that are not on the tape, start a new one with `capstan capture {tape.name} --reseat`",
        stream=tape.name,
    )
