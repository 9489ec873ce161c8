"""Facts for listings of streams, tapes and runs, read from tapes and ledgers without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from capstan.core.config import ProjectConfig, check_name, check_target
from capstan.replay.planning.target_places import target_path
from capstan.reporting.activity import CLAIMED
from capstan.reporting.run_view import RunView, list_runs
from capstan.reporting.stream_view import (
    NoView,
    StreamView,
    read_stream,
    read_streams,
    read_verified,
    stream_names,
)
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.late.late_rows import late_by_cause
from capstan.storage.late.settled import settling
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.tape import index
from capstan.storage.tape.feed import Origin, count_reinjected
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape

LATE_REASONS = {
    "malformed": "its text is no record, or has a field that does not parse into its type",
    "no-row": "it makes no row: its array has no elements, or is null",
    "unknown-worker": "it names no worker, or one that is not declared",
    "no-time": "its time is null or after the year 9999, or cannot be read: text other than ISO "
    "8601, or with an offset beyond 18 hours",
    "below-minimum": "its time is before the stream's minimum",
    "ahead": "its time is more than `max_ahead` after all others",
    "late": "its time was complete when it came",
}
"""Why a record is not on tape, by reason."""


def stream_rows(lake: Lake, config: ProjectConfig) -> list[dict[str, object]]:
    """One row per stream, sorted by name; declared streams without a tape are included."""
    lake.require()
    views = read_streams(lake, config, stream_names(lake, config))
    return [
        {
            "stream": view.name,
            "captured": isinstance(view, StreamView) or view.error is not None,
            "declared": view.name in config.streams,
            "description": view.description,
            **_tape(view),
        }
        for view in views
    ]


def _tape(view: StreamView | NoView) -> dict[str, object]:
    if isinstance(view, NoView):
        return {} if view.error is None else view.error.summary()
    return {
        "cut": view.cut.commit,
        "workers": len(view.workers),
        "events": view.events,
        "records": view.records,
        "late": sum(view.late.values()),
        **_frontier(view),
    }


def _frontier(view: StreamView) -> dict[str, object]:
    render = view.tape.time_type.render
    return {"frontier": [render(time) for time in view.antichain.elements], "closed": view.closed}


def tape_facts(lake: Lake, name: str, as_of: int | None) -> dict[str, object]:
    """The facts of a tape at a cut."""
    view = read_stream(lake, name, as_of=as_of)
    tape, verified = view.tape, read_verified(lake, view.tape, view.cut)
    commit, at = verified.commit(view), verified.at
    render = tape.time_type.render
    return {
        "stream": name,
        "cut": view.cut.commit,
        "newest": newest_cut(tape).commit,
        "times": [f"{c.name} {c.kind.value}" for c in tape.time_type.coordinates],
        **_frontier(view),
        "late": view.late,
        "verified": None if commit is None or at is None else {"cut": commit, "at": moment(at)},
        "retired": [box.to_json(tape.time_type)["until"] for box in retired_boxes(lake, tape)],
        "columns": _columns(tape),
        "workers": [
            {
                "worker": state.worker,
                "label": state.label,
                "events": state.events,
                "records": state.records,
                "holdings": [[render(time), count] for time, count in state.holdings],
                "frontier": [render(time) for time in state.frontier.elements],
                "closed": state.closed,
                "verified": verified.workers.get(state.worker),
            }
            for state in view.workers
        ],
    }


def late_facts(lake: Lake, name: str) -> dict[str, object]:
    """Late records, which are not on tape, by reason and cause, and the number re-injected."""
    tape = open_tape(lake, name, stamps=True)
    cut = newest_cut(tape)
    labels = index.worker_labels(tape, cut)
    rows, last = late_by_cause(tape, cut), tape.time_type.coordinates[-1]
    return {
        "stream": name,
        "cut": cut.commit,
        "records": sum(row.records for row in rows),
        "late": [
            {
                "reason": row.reason,
                "field": row.field,
                "error": row.error,
                "file": row.file,
                "records": row.records,
                "workers": [labels.get(worker, str(worker)) for worker in row.workers],
                "first_batch": row.first,
                "last_batch": row.last,
                "first_time": None if row.since is None else last.render(row.since),
                "last_time": None if row.until is None else last.render(row.until),
            }
            for row in rows
        ],
        "put_back": count_reinjected(tape, cut),
        "dropped": _settling(tape, cut, Origin.DROP),
        "repaired": _settling(tape, cut, Origin.FIX),
    }


def _settling(tape: Tape, cut: Cut, origin: Origin) -> list[dict[str, object]]:
    """What batches have settled of `late`: who, when, how many and which or how."""
    return [
        {"batch": entry.batch, **{k: v for k, v in entry.detail.items() if k != "rows"}}
        for entry in settling(tape, cut, origin)
    ]


def moment(at: datetime) -> str:
    """A time of a ledger, to the second, in UTC."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _columns(tape: Tape) -> list[str]:
    """The payload columns of a stream with their types."""
    schema = json.loads(delta.open_table(tape.paths.records).schema().to_json())
    data = next(field for field in schema["fields"] if field["name"] == "data")
    return [f"{field['name']} {_type(field['type'])}" for field in data["type"]["fields"]]


def _type(kind: object) -> str:
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])}, {_type(kind['valueType'])}>"
    inside = ", ".join(f"{field['name']} {_type(field['type'])}" for field in kind["fields"])
    return f"struct<{inside}>"


def run_rows(
    lake: Lake, config: ProjectConfig, target: str | None, stream: str | None
) -> list[dict[str, object]]:
    """One row per run, the newest first, including runs that have only a claim."""
    lake.require()
    path = None
    if target is not None:
        path = target_path(lake, config, check_target(target))[0]
    if stream is not None:
        check_name("stream", stream)
    return [
        _run_row(view)
        for view in list_runs(lake, claimed=stream is None)
        if path in (None, view.target) and (stream is None or stream in view.streams)
    ]


def _run_row(view: RunView) -> dict[str, object]:
    certificate = view.certificate
    pipeline = certificate and certificate.pipeline
    names = ("records", "workers", "since", "until", "transform")
    return {
        "run": view.run,
        "stream": None if view.state == CLAIMED else view.stream,
        "target": view.target,
        "state": view.state,
        "holds": view.holds,
        "attempts": view.attempts,
        **{name: certificate and getattr(certificate, name) for name in names},
        # The name of a pipeline and its sink, as in the ledgers.
        "pipeline": pipeline and f"{pipeline['name']}.{pipeline['sink']}",
        "version": certificate.target_version if certificate and view.published else None,
        "error": "CAP-REJECTED" if view.state == "rejected" else view.error.get("error"),
        "at": moment(view.at),
    }


def report_facts(view: RunView) -> dict[str, object]:
    """The report of a run for programs: its certificate with its steps, audits and findings."""
    certificate = view.certificate
    return {
        "run": view.run,
        "state": view.state,
        "streams": list(view.streams),
        "target": view.target,
        "at": moment(view.at),
        "attempts": view.attempts,
        "published": view.published,
        "certificate": None if certificate is None else certificate.to_json(),
        "request": view.request,
        "audit": view.audit or None,
        "difference": view.difference or None,
        "error": view.error or None,
        "steps": [
            {
                "attempt": step.attempt,
                "step": str(step.step),
                "at": moment(step.at),
                "detail": step.error or step.detail,
            }
            for step in view.steps
        ],
        "findings": [
            {
                "at": moment(audited.at),
                "audit": audited.audit,
                "version": audited.target_version,
                "rows": [{**row, "at": moment(row["at"])} for row in audited.rows],
            }
            for audited in view.found
        ],
    }
