"""The start of a capture: its tape is opened or created, and made ready for micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from capstan.capture.batch import classify
from capstan.capture.query.tape_settings import settings_of, update_settings
from capstan.capture.synthetic import rescale as rescaling
from capstan.capture.synthetic import synthetic_batch
from capstan.core.config import Stream
from capstan.storage.lake import Lake, is_table
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.fingerprint import require_types
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.tape import Tape, create_tape, open_tape, stored_payload
from capstan.storage.tape.upgrade import upgrade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_tape(
    spark: SparkSession,
    lake: Lake,
    stream: Stream,
    payload: StructType | None,
    rescale: int | None,
) -> Tape:
    """Open or create the tape of a stream, as its captures begin.

    An interrupted synthetic batch is completed, and permitted changes of the configuration are
    stored.

    Args:
        payload: The columns of its records; None for those on tape.
        rescale: The number of workers to rescale to first; it must be the declared number.
    """
    settings = settings_of(stream)
    rescaling.require_declared(stream.name, settings, rescale)
    if payload is not None:
        require_types(payload.fields)
    if payload is not None and not is_table(lake.stream(stream.name).events):
        time_type = classify.time_type_of(stream)
        return create_tape(spark, lake, stream.name, time_type, payload, settings)
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
    return update_settings(tape, settings)
