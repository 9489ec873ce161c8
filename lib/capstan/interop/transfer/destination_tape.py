"""The tapes that recordings of other systems come onto: made once, opened from then on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from capstan.errors import InvalidRequestError
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.recording_format import Form
from capstan.storage.lake import Lake, is_table
from capstan.storage.tape import index
from capstan.storage.tape.schema import payload_of
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
    """The tape of stream `name`; None where none was made yet."""
    return open_tape(lake, name) if is_table(lake.stream(name).events) else None


def form_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    form: Form,
    settings: Mapping[str, object],
    otherwise: InvalidRequestError,
) -> Tape:
    """The tape of recordings of one form: the one that is there, or a new one.

    Args:
        spark: The session.
        lake: Where tapes lie.
        name: The stream.
        form: The form of its recordings, which gives a new tape its times and its payload.
        settings: How it is recorded, which never changes.
        otherwise: What is raised when the one that is there is recorded in another way.

    Returns:
        The tape.
    """
    tape = existing_tape(lake, name)
    if tape is None:
        payload = payload_of(from_arrow_schema(recording_reader.record_schema(form)))
        return create_tape(spark, lake, name, form.time_type, payload, settings)
    if tape.settings != settings:
        raise otherwise
    return tape


def enrol(tape: Tape, workers: Iterable[int]) -> None:
    """Put the workers of a new tape on its roster, labelled by their numbers; again, it stands."""
    append_workers(tape, {number: str(number) for number in workers}, 0, number=0)


def enrol_named(tape: Tape, workers: Mapping[int, str], commit: int) -> int:
    """Put workers on the roster of a tape that are not there yet; how many.

    Args:
        tape: The tape.
        workers: Labels by number.
        commit: The commit that opens them.

    Raises:
        FencedError: `CAP-FENCED` when another process writes to the roster meanwhile.
    """
    # Before the roster is looked at: whoever writes to it from here on is in the way of this write.
    last = newest_roster(tape)
    known = index.worker_labels(tape, Cut(commit, 0))
    fresh = {w: label for w, label in sorted(workers.items()) if w not in known}
    # Workers come in any order: the transaction rises though their numbers may not.
    if fresh and not append_workers(tape, fresh, commit, number=last + 1):
        raise fenced(tape, commit)
    return len(fresh)


def forgotten(tape: Tape) -> InvalidRequestError:
    """The error of who would go on with a commit, where the log no longer knows of what it is."""
    return InvalidRequestError(
        "CAP-HALF-DONE",
        f"stream {tape.name}: its last commit was cut off after its records, and so long ago that "
        "the table's log no longer tells of what they are; nothing was written",
        "make a stream of another name",
        stream=tape.name,
    )
