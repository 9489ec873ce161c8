"""Attaches a tape to a streaming query of your own.

Pass what `capture_into` returns to `foreachBatch`:

    into = capstan.capture_into(
        "orders",
        lake="./lake",
        workers={"by": "key", "columns": ["customer"], "count": 4},
        time={"domain": "event", "column": "ordered_at", "every": "1 hour"},
    )
    writer = orders.writeStream.foreachBatch(into)
    query = writer.option("checkpointLocation", "/checkpoints/orders").start()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capstan.api.workplace import Workplace
from capstan.core.config import Stream
from capstan.core.config.loading.validation import read_model
from capstan.core.config.sources import QUERY
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.capture.query.attached_query import CaptureInto


def capture_into(
    stream: str,
    *,
    lake: str | Path | None = None,
    workers: Mapping[str, Any] | None = None,
    time: Mapping[str, Any] | None = None,
    late: str | None = None,
    config: str | Path | None = None,
    reseat: bool = False,
    rescale: int | None = None,
) -> CaptureInto:
    """A function for `foreachBatch` that records each micro-batch on a stream's tape, exactly once.

    The query may have any source, any transformations and any trigger; its session must have Delta.
    Its checkpoint identifies it: a restarted query continues, and any other one is refused. The
    stream needs no declaration. If `streams.yaml` declares it, with `source: {format: query}`, the
    arguments may be omitted, and must agree otherwise.

    Args:
        stream: The stream's name.
        lake: The lake's folder or URI; by default `CAPSTAN_LAKE`, or `./lake`.
        workers: The assignment of records to workers, as in `streams.yaml`.
        time: The assignment of times to records, as in `streams.yaml`.
        late: The treatment of late records: `dead-letter`, `advance` or `fail`.
        config: The declaration file; by default `CAPSTAN_CONFIG`, or `dags/streams.yaml`.
        reseat: Accept a query that has not recorded this stream yet in place of its present one,
            for example after its checkpoint was lost. It must offer only records that are not on
            the tape.
        rescale: Give the stream this number of workers by key first; it must be `workers.count`.

    Raises:
        InvalidRequestError: `CAP-REQUEST` for arguments that make no stream; `CAP-DECLARED` when
            they differ from the declaration, or the stream has a source of its own.
    """
    from capstan.capture.query.attached_query import CaptureInto

    place = Workplace(lake, config=config)
    given = {
        key: value
        for key, value in {"workers": workers, "time": time, "late": late}.items()
        if value is not None
    }
    declared = place.declarations.streams.get(stream)
    chosen = _read(stream, given) if declared is None else _agreed(declared, given)
    return CaptureInto(place.lake, chosen, reseat=reseat, rescale=rescale)


def _agreed(declared: Stream, given: Mapping[str, Any]) -> Stream:
    """A declared stream, whose declaration agrees with the arguments that were given."""
    from capstan.capture.query.attached_query import require_no_source
    from capstan.capture.query.tape_settings import first_difference, settings_of

    require_no_source(declared)
    parts = {"workers": declared.workers, "time": declared.time, "late": declared.late}
    settings = settings_of(_read(declared.name, {**parts, **given}))
    if settings != settings_of(declared):
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {declared.name}: capture_into was given "
            f"{first_difference(settings.to_json(), settings_of(declared).to_json())}",
            "change one of them, or omit the argument",
            stream=declared.name,
        )
    return declared


def _read(name: str, parts: Mapping[str, Any]) -> Stream:
    return read_model(Stream, {"name": name, "source": {"format": QUERY}, **parts}, "CAP-REQUEST")
