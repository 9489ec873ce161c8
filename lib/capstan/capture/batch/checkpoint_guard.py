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
from capstan.errors.shell_command import command
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import (
    children,
    delete_file,
    delete_folder,
    is_table,
    read_if_any,
    write_text,
)
from capstan.storage.tape import feed
from capstan.storage.tape.feed import Consumed
from capstan.storage.tape.tape import Tape, newest_cut, shut_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = "capstan.checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a tape."""

    identity: str  # given by Structured Streaming
    base: int  # the tape's number of its batch 0
    shift: int = 0  # synthetic batches since, added to later numbers
    folder: str | None = None  # of a caller's query; None for the tape's own

    def number(self, batch: int) -> int:
        """The tape's number for a future batch of the checkpoint."""
        return self.base + self.shift + batch

    def place(self, tape: Tape) -> str:
        """Its folder."""
        return self.folder or tape.paths.checkpoint


def validate(tape: Tape) -> Checkpoint:
    """Check the tape's checkpoint and return it; a new tape gets one."""
    known = _known(tape)
    if known is not None and known.folder is not None:
        raise _attached(tape, known)
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


def attach(
    spark: SparkSession, tape: Tape, query: Checkpoint, batch: int, *, reseat: bool = False
) -> Checkpoint:
    """The checkpoint of a query of the caller's that is about to record a batch.

    The first query that records a stream becomes its writer. With `reseat`, one that has not
    written to the tape yet takes its place. The tape has no unfinished synthetic batch.
    """
    known = _known(tape)
    if known is None:
        placed = _placed(tape, query, batch, last_batch(tape) + 1)
        # Of two queries that begin at once, the first one is the writer.
        if arrow_writer.add_property(tape.paths.events, _PROPERTY, _text(placed)):
            return placed
        known = _known(tape)
        assert known is not None
    if known.identity != query.identity:
        if not reseat or _has_written(tape, query):
            raise _another_query(tape, known, query, replaced=reseat)
        _shut_out(spark, tape, known)
        return _remember(tape, _placed(tape, query, batch, newest_cut(tape).batch + 1))
    if known.folder != query.folder:
        known = _remember(tape, replace(known, folder=query.folder))
    return replace(known, shift=_inserted(tape, known.base))


def is_attached(tape: Tape) -> bool:
    """Whether a query of the caller's writes the tape, with a checkpoint of its own."""
    known = _known(tape)
    return known is not None and known.folder is not None


def is_recorded(tape: Tape, checkpoint: Checkpoint, batch: int, consumed: Consumed) -> bool:
    """Whether a batch of the query that writes the tape is on the tape already."""
    # Spark repeats a batch if the query was killed before it had noted the batch's end. A
    # checkpoint that was restored from a backup repeats all batches since then; but the source may
    # have more records by now, and Delta would skip them silently as a repeat.

    # Looked up by the query's number: that on tape of a batch before an inserted one is another one
    # than `number` says.
    same = feed.entry_of(tape, checkpoint.identity, batch)
    if same is None:
        last = last_batch(tape)
        if checkpoint.number(batch) == last + 1:
            return False
        place = f"is at batch {batch}, but the tape is at batch {last - checkpoint.number(0)}"
        raise _checkpoint_error(tape, place, checkpoint)
    if same.detail != (consumed.detail or {}):
        problem = f"has a batch {batch} with other input than batch {batch} on the tape"
        raise _checkpoint_error(tape, problem, checkpoint)
    return same.batch <= newest_cut(tape).batch


def replace_checkpoint(spark: SparkSession, tape: Tape) -> Checkpoint:
    """Give the tape a new checkpoint whose batch numbers continue those of the tape."""
    # Rows of an incomplete batch are not on the tape and are deleted. The source is captured again
    # from its start, so it must offer only records that are not on the tape yet.

    # The checkpoint goes before any row, and its identity first. A capture that resumes after an
    # interruption here must not take it for a checkpoint whose rows Delta has.
    delete_file(_identity_path(tape))
    delete_folder(tape.paths.checkpoint)
    _shut_out(spark, tape, _known(tape))
    return _remember(tape, Checkpoint(_write_identity(tape), newest_cut(tape).batch + 1))


def _shut_out(spark: SparkSession, tape: Tape, writer: Checkpoint | None) -> None:
    """Shut out the present writer, and delete the rows of a batch that is not on tape in full."""
    if writer is not None:
        shut_out(spark, tape, writer.identity)
    last = newest_cut(tape).batch
    for path in (tape.paths.records, tape.paths.late, tape.paths.feed):
        if is_table(path):
            delta.delete_rows(spark, path, f"batch > {last}")


def _placed(tape: Tape, query: Checkpoint, batch: int, number: int) -> Checkpoint:
    """A query whose batch gets a number on the tape."""
    # A query that has run before may place its batch 0 before batches that were inserted earlier.
    base = number - batch
    while (excess := base + _inserted(tape, base) + batch - number) > 0:
        base -= excess
    return replace(query, base=base, shift=_inserted(tape, base))


def _has_written(tape: Tape, query: Checkpoint) -> bool:
    return any(entry.checkpoint == query.identity for entry in feed.entries_from(tape, 0))


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
    """Check that no micro-batch is incomplete."""
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
    known = _known(tape)
    hint = (
        f"complete it with {command('capture', tape.name)} and the previous configuration"
        if known is None or known.folder is None
        else "wait until its query has recorded it; or start the query again, as it was before"
    )
    return InvalidRequestError(
        "CAP-HALF-DONE",
        f"stream {tape.name}: {operation} has to wait, the last micro-batch is incomplete",
        hint,
        stream=tape.name,
    )


def _inserted(tape: Tape, base: int) -> int:
    """The number of synthetic batches on the tape from batch `base` on."""
    return feed.count_synthetic(tape, base, newest_cut(tape).batch)


def _known(tape: Tape) -> Checkpoint | None:
    text = delta.open_table(tape.paths.events).metadata().configuration.get(_PROPERTY)
    return Checkpoint(**json.loads(text)) if text else None


def _remember(tape: Tape, checkpoint: Checkpoint) -> Checkpoint:
    arrow_writer.set_properties(tape.paths.events, {_PROPERTY: _text(checkpoint)})
    return checkpoint


def _text(checkpoint: Checkpoint) -> str:
    folder = {} if checkpoint.folder is None else {"folder": checkpoint.folder}
    return json.dumps({"identity": checkpoint.identity, "base": checkpoint.base} | folder)


def _identity(tape: Tape) -> str | None:
    text = read_if_any(_identity_path(tape))
    return None if text is None else str(json.loads(text)["id"])


def _write_identity(tape: Tape) -> str:
    # Spark adopts the query id that it finds here, so the id is known before the first batch.
    identity = str(uuid.uuid4())
    write_text(_identity_path(tape), json.dumps({"id": identity}))
    return identity


def _identity_path(tape: Tape) -> str:
    return f"{tape.paths.checkpoint}/metadata"


def _last(tape: Tape, log: str) -> int:
    known = _known(tape)
    folder = tape.paths.checkpoint if known is None else known.place(tape)
    names = children(f"{folder}/{log}")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _checkpoint_error(
    tape: Tape, problem: str, checkpoint: Checkpoint | None = None
) -> InvalidRequestError:
    folder = tape.paths.checkpoint if checkpoint is None else checkpoint.place(tape)
    again = (
        f"start a new one with {command('capture', tape.name, '--reseat')}"
        if folder == tape.paths.checkpoint
        else "start the query with a new checkpoint and capture_into(..., reseat=True)"
    )
    return InvalidRequestError(
        "CAP-CHECKPOINT",
        f"stream {tape.name}: the checkpoint at {folder} {problem}",
        "restore the right checkpoint from a backup; or, if the source now offers only records "
        f"that are not on the tape, {again}",
        stream=tape.name,
    )


def _another_query(
    tape: Tape, known: Checkpoint, query: Checkpoint, *, replaced: bool
) -> InvalidRequestError:
    hint = (
        "stop this query; it was replaced by that one"
        if replaced
        else "stop this query; or, if it replaces that one and offers only records that are not on "
        "the tape, start it with capture_into(..., reseat=True)"
    )
    return InvalidRequestError(
        "CAP-CHECKPOINT",
        f"stream {tape.name} is recorded by the query with checkpoint {known.place(tape)}, not by "
        f"that with {query.folder}",
        hint,
        stream=tape.name,
    )


def _attached(tape: Tape, known: Checkpoint) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CHECKPOINT",
        f"stream {tape.name} is recorded by a query of its own, with checkpoint {known.folder}",
        "run that query; or, if the source offers only records that are not on the tape, record it "
        f"with {command('capture', tape.name, '--reseat')} from now on",
        stream=tape.name,
    )
