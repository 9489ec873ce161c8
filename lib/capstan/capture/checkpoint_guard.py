"""The checkpoint guard: Structured Streaming's batch numbers must be those of the tape.

A lost or replaced checkpoint restarts batch numbers. Delta would take the batches for repeated
ones and skip them in silence; so before a query starts, the tape's last batch must be the
checkpoint's last one or one behind.
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
        identity: Its identity.
        base: The tape's number of its batch 0.
        shift: How many batches have been inserted since: batches that follow have a number which
            is so much greater.
    """

    identity: str
    base: int
    shift: int = 0

    def number(self, batch: int) -> int:
        """The tape's number of a batch that is still to come."""
        return self.base + self.shift + batch


def validate(tape: Tape) -> Checkpoint:
    """Check the tape's checkpoint and return it; a new tape gets one.

    Raises:
        InvalidRequestError: `CAP-CHECKPOINT` when it is gone, is another one, or is an older copy.
    """
    known = _known(tape)
    identity = _identity(tape)
    if known is None:
        identity = identity or _write_identity(tape)
        return _remember(tape, Checkpoint(identity, 0))
    if identity is None:
        raise _refused(tape, "is gone")
    if identity != known.identity:
        raise _refused(tape, "is another one than the one that wrote this tape")
    known = replace(known, shift=_inserted(tape, known.base))
    on_tape = last_batch(tape) - known.number(0)
    offsets, commits = _last(tape, "offsets"), _last(tape, "commits")
    if not (on_tape == offsets or (on_tape == offsets - 1 and commits == offsets - 1)):
        raise _refused(tape, f"stands at batch {offsets}, the tape at batch {on_tape}")
    return known


def reseat(spark: SparkSession, tape: Tape) -> Checkpoint:
    """Give the tape a new checkpoint, whose batches are numbered on from the tape's.

    Rows of a batch that was half done are not on the tape, and are cleared away. What the source
    offers from its start is captured again: it must offer only what is not on tape yet.
    """
    last = newest_cut(tape).batch
    # Before any row goes, and its identity before the rest: a capture that comes upon what was cut
    # off here must not take the checkpoint for one whose rows Delta knows to be there.
    delete_file(_identity_path(tape))
    delete_folder(tape.paths.checkpoint)
    for path in (tape.paths.records, tape.paths.late, tape.paths.feed):
        if is_table(path):
            delta.delete_rows(spark, path, f"batch > {last}")
    return _remember(tape, Checkpoint(_write_identity(tape), last + 1))


def last_batch(tape: Tape) -> int:
    """The last micro-batch that left anything on tape or in `late`, or ended without; else -1."""
    late, cut = delta.open_table(tape.paths.late).get_add_actions(flatten=True), newest_cut(tape)
    # While there is no worker, nobody could state that a batch without rows was there.
    bare = _ended(tape) if cut.commit < 0 else -1
    return max([cut.batch, bare, *delta.stat(late, "max.batch")])


def _ended(tape: Tape) -> int:
    """The last batch of the feed that the tape's checkpoint gave, and knows to be over; -1."""
    known, commits = _known(tape), _last(tape, "commits")
    return max(
        (
            each.batch
            for each in feed.claims_from(tape, 0)
            if known is not None
            and each.checkpoint == known.identity
            and each.number is not None
            and each.number <= commits
        ),
        default=-1,
    )


def transaction(tape: Tape, identity: str, batch: int) -> Txn:
    """What a batch's records and late rows are committed under: its version is the batch."""
    return Txn(f"capture:{tape.name}:{identity}", batch)


def require_no_partial_batch(tape: Tape, what: str) -> None:
    """Check that no micro-batch is half done.

    Raises:
        InvalidRequestError: `CAP-HALF-DONE`, saying that `what` has to wait.
    """
    known = _known(tape)
    # Its late rows come before its events, and do not make it whole.
    if known is None or _last(tape, "offsets") <= _last(tape, "commits"):
        return
    # Records are a batch's first rows: a batch without them was begun and has written nothing.
    last = newest_cut(tape).batch
    app = transaction(tape, known.identity, last).app
    written = delta.open_table(tape.paths.records).transaction_version(app)
    if written is not None and written > last:
        raise half_done(tape, what)


def half_done(tape: Tape, what: str) -> InvalidRequestError:
    """The error of work that has to wait until a micro-batch has ended as it began."""
    return InvalidRequestError(
        "CAP-HALF-DONE",
        f"stream {tape.name}: {what} has to wait, its last micro-batch is half done",
        f"finish it with `capstan capture {tape.name}` as it was declared before",
        stream=tape.name,
    )


def _inserted(tape: Tape, base: int) -> int:
    """How many batches from `base` on stand on the tape that no checkpoint has given."""
    last = newest_cut(tape).batch
    return sum(base <= each.batch <= last for each in feed.inserted(tape))


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
    # Spark takes over the query id that it finds here; so it is known before the first batch.
    identity = str(uuid.uuid4())
    write_text(_identity_path(tape), json.dumps({"id": identity}))
    return identity


def _identity_path(tape: Tape) -> str:
    return f"{tape.paths.checkpoint}/metadata"


def _last(tape: Tape, log: str) -> int:
    names = children(f"{tape.paths.checkpoint}/{log}")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _refused(tape: Tape, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CHECKPOINT",
        f"stream {tape.name}: the checkpoint at {tape.paths.checkpoint} {what}",
        "put the right one back from a copy; or, if the source now offers only what is not on "
        f"tape yet, take a new one with `capstan capture {tape.name} --reseat`",
        stream=tape.name,
    )
