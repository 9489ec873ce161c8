"""Destination tapes of imports and transfers: created once, then reopened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from capstan.errors import InvalidRequestError
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.recording_format import Form
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake, is_table
from capstan.storage.tape import index
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import (
    Cut,
    Tape,
    append_workers,
    create_tape,
    fenced,
    newest_roster,
    open_tape,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def existing_tape(lake: Lake, name: str) -> Tape | None:
    """The tape of stream `name`; None if it does not exist yet."""
    return open_tape(lake, name, stamps=True) if is_table(lake.stream(name).events) else None


def open_or_create_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    form: Form,
    settings: TapeSettings,
    mismatch: InvalidRequestError,
    *,
    stamped: bool = False,
) -> Tape:
    """The tape for recordings of a form, or a new one; raises `mismatch` if it differs."""
    tape = existing_tape(lake, name)
    if tape is None:
        payload = payload_of(from_arrow_schema(recording_reader.record_schema(form)))
        return create_tape(spark, lake, name, form.time_type, payload, settings, stamped=stamped)
    # Earlier versions put pairs on tapes of products.
    if tape.settings != settings or tape.time_type != form.time_type:
        raise mismatch
    return tape


def add_workers(tape: Tape, workers: Iterable[int]) -> None:
    """Put the workers of a new tape on its roster, labelled by their numbers; idempotent."""
    append_workers(tape, {number: str(number) for number in workers}, 0, number=0)


def add_new_workers(tape: Tape, workers: Mapping[int, str], commit: int) -> int:
    """Put workers on a tape's roster unless they are on it; returns the number of new ones."""
    # Read before the roster itself: any later writer then conflicts with this write.
    last = newest_roster(tape)
    known = index.worker_labels(tape, Cut(commit, 0))
    fresh = {w: label for w, label in sorted(workers.items()) if w not in known}
    # Workers come in any order: the transaction number rises even if theirs do not.
    if fresh and not append_workers(tape, fresh, commit, number=last + 1):
        raise fenced(tape, commit)
    return len(fresh)


def interrupted_commit(tape: Tape, transaction: Txn, key: str) -> Any:
    """What an interrupted commit noted under `key` with its records; None without such a commit."""
    table = delta.open_table(tape.paths.records)
    if table.transaction_version(transaction.app) != transaction.version:
        return None
    # Not the newest entry: maintenance may have written since, with a note of its own.
    for commit in delta.history(tape.paths.records):
        if key in commit.note:
            return commit.note[key]
    raise InvalidRequestError(
        "CAP-HALF-DONE",
        f"stream {tape.name}: its last commit was interrupted after its records, so long ago that "
        "the table's log no longer describes it; nothing was written",
        "use a stream of another name",
        stream=tape.name,
    )
