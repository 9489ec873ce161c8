"""The configuration stored with a tape, which parts of it may change, and how a capture begins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from capstan.capture.batch import checkpoint_guard, classify
from capstan.capture.synthetic import rescale as rescaling
from capstan.capture.synthetic import synthetic_batch
from capstan.core.config import ByColumn, ByKey, EventTime, Stream
from capstan.errors import InvalidRequestError
from capstan.storage.compaction.index_compaction import keep_short
from capstan.storage.delta.arrow_writer import extend_log_retention
from capstan.storage.lake import Lake, is_table
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.fingerprint import require_types
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import (
    Tape,
    change_settings,
    create_tape,
    newest_cut,
    open_tape,
    stored_payload,
)
from capstan.storage.tape.upgrade import upgrade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings_of(stream: Stream) -> TapeSettings:
    """The configuration in the form stored with the tape."""
    by, time = stream.workers, stream.time
    workers: dict[str, object] = {"by": by.by}
    if isinstance(by, ByKey):
        workers |= {"columns": list(by.columns), "count": by.count}
    else:
        workers |= {"column": by.column}
    fixed: dict[str, object] = {"workers": workers, "domain": time.domain}
    free: dict[str, object] = {"late": str(stream.late)}
    if isinstance(by, ByColumn) and by.labels:
        free["labels"] = list(by.labels)
    if isinstance(time, EventTime):
        fixed["time"] = {
            "column": time.column,
            "expression": time.expression,
            "every_us": time.every // timedelta(microseconds=1),
            "minimum": time.minimum.isoformat(),
        } | ({} if time.unit is None else {"unit": str(time.unit)})
        spans = {
            "lateness": time.lateness, "idle_after": time.idle_after, "max_ahead": time.max_ahead
        }  # fmt: skip
        free |= {name: None if span is None else str(span) for name, span in spans.items()}
        free |= {"watermark": time.watermark}
    if stream.source.selection is not None:
        free |= {"select": stream.source.selection}
    return TapeSettings(fixed, free)


def update_settings(tape: Tape, settings: TapeSettings) -> Tape:
    """Check a configuration against the tape's, and store permitted changes."""
    if settings == tape.settings:
        return tape
    require_same(tape, settings)
    checkpoint_guard.require_no_partial_batch(tape, "a changed declaration")
    return change_settings(tape, settings)


def require_same(tape: Tape, settings: TapeSettings) -> None:
    """Check that a configuration takes times and workers from where the tape has them from."""
    stored, declared = tape.settings.fixed, settings.fixed
    if stored != declared:
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {tape.name} was captured with {first_difference(stored, declared)}",
            "workers and times of a tape cannot change; declare a new stream",
            stream=tape.name,
        )


def first_difference(stored: object, declared: object, path: str = "") -> str:
    """The first setting that differs, as `late fail, but is declared with advance`."""
    if isinstance(stored, Mapping) and isinstance(declared, Mapping):
        for key in [*stored, *declared]:
            if stored.get(key) != declared.get(key):
                # The groups say which settings may change; they are no keys of a declaration.
                child = path if key in ("fixed", "free") else f"{path}.{key}".lstrip(".")
                return first_difference(stored.get(key), declared.get(key), child)
    return f"{path} {stored}, but is declared with {declared}"


def start_tape(
    spark: SparkSession, lake: Lake, stream: Stream, payload: StructType | None, rescale: int | None
) -> Tape:
    """Open or create the tape of a stream, as its captures begin.

    An interrupted synthetic batch is completed, and permitted changes of the configuration are
    stored, as are the totals of its index. `payload` None takes the columns on tape; `rescale` must
    be the declared number of workers.
    """
    settings = settings_of(stream)
    rescaling.require_declared(stream.name, settings.count, rescale)
    if payload is not None:
        require_types(payload.fields)
    if payload is not None and not is_table(lake.stream(stream.name).events):
        time_type = classify.time_type_of(stream)
        tape = create_tape(spark, lake, stream.name, time_type, payload, settings)
    else:
        tape = open_tape(lake, stream.name)
        if payload is not None:
            check_payload(stream.name, stored_payload(tape), payload)
        tape = upgrade(tape)
        if synthetic_batch.finish(spark, tape):
            tape = open_tape(lake, stream.name)
        count = rescaling.target_count(tape, settings, rescale)
        if count is not None:
            detail = rescaling.detail_of(tape, count)
            synthetic_batch.insert(spark, tape, Origin.RESCALE, lambda _: detail, "rescaling it")
            tape = open_tape(lake, stream.name)
        tape = update_settings(tape, settings)
    # Idle workers and a stalled frontier are detected from the times of commits.
    idle_after = stream.time.idle_after if isinstance(stream.time, EventTime) else None
    spans = [span for span in (idle_after, stream.stalled_after) if span is not None]
    if spans:
        extend_log_retention(tape.paths.events, max(spans) + timedelta(days=1))
    keep_short(tape, newest_cut(tape).commit)
    return tape
