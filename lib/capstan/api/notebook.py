"""How notebooks show results: as tables. Packages that make results do not render them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from capstan.core.json_object import Json
from capstan.reporting.formatting import cell_text

if TYPE_CHECKING:
    from capstan.backfill.run import BackfillResult
    from capstan.backfill.survey import Survey
    from capstan.replay.preview import Preview
    from capstan.replay.result import ReplayResult
    from capstan.replay.standalone_audit import AuditReport
    from capstan.verify import Verification

_MOST_ROWS = 50
_CERTIFICATE = (
    "stream", "cut", "workers", "since", "until", "records", "times", "fingerprint", "complete",
    "frontier", "late", "transform", "pipeline", "mode", "target", "target_path",
    "target_version", "published",
)  # fmt: skip
_PLAN = (
    "stream", "cut", "workers", "since", "until", "frontier", "complete", "records", "times",
    "files", "files_all", "bytes", "late", "transform", "pipeline", "mode", "target", "stands",
    "held_by", "changed", "checks",
)  # fmt: skip
_Result = TypeVar("_Result")


def shown(result: _Result) -> _Result:
    """A result whose class has got the method by which notebooks show it."""
    kind: Any = type(result)
    kind._repr_html_ = HTML[kind.__name__]
    return result


def _verification(verification: Verification) -> str:
    state = "valid" if verification.valid else "NOT valid"
    title = f"{verification.stream}, commit {verification.cut.commit}: {state}"
    time_type = verification.tape.time_type
    rows = [verdict.to_json(time_type) for verdict in verification.workers]
    return rows_html(title, ("label", "valid", "events", "records"), rows)


def _preview(preview: Preview) -> str:
    value = preview.to_json()
    time_type = preview.plan.inputs.tape.time_type
    changes = {} if preview.comparison is None else preview.comparison.to_json(time_type)
    return facts_html("Plan", {name: value.get(name) for name in _PLAN} | changes)


def _replay(replayed: ReplayResult) -> str:
    state = "unchanged: an earlier run stands" if replayed.unchanged else "done"
    facts = {name: getattr(replayed.certificate, name, None) for name in _CERTIFICATE}
    return facts_html(f"{replayed.name}: {state}", facts)


def _audit(report: AuditReport) -> str:
    value = report.to_json()
    del value["findings"]
    head = facts_html("Audit passed" if report.passed else "Audit FAILED", value)
    rows = [finding.to_json(report.time_type) for finding in report.audit.shown]
    return head + (rows_html("Findings", tuple(rows[0]), rows) if rows else "")


def _survey(survey: Survey) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in survey.counts.items() if count)
    rows = [interval.to_json() for interval in survey.intervals]
    columns = tuple(rows[0]) if rows else ()
    return rows_html(f"{survey.declared.name}: {counts or 'no intervals'}", columns, rows)


def _backfill(backfill: BackfillResult) -> str:
    value = backfill.to_json()
    states = ("done", "unchanged", "failed", "left")
    counts = ", ".join(f"{value[state]} {state}" for state in states)
    columns = ("since", "until", "run", "records", "published", "error")
    rows = [run.to_json() for run in backfill.runs]
    return rows_html(f"{value['replay']}: {counts}", columns, rows)


HTML: Mapping[str, Callable[[Any], str]] = {
    "AuditReport": _audit,
    "BackfillResult": _backfill,
    "CaptureResult": lambda found: facts_html(f"Capture of {found.stream}", found.to_json()),
    "Listing": lambda listing: rows_html(listing.title, listing.columns, listing.rows),
    "MaintenanceResult": lambda done: facts_html("Maintenance", done.to_json()),
    "Preview": _preview,
    "ReplayResult": _replay,
    "Survey": _survey,
    "Verification": _verification,
}
"""By class of result, which is not imported before it is needed."""


def facts_html(title: str, facts: Json) -> str:
    """A table of names and values; facts without a value are left out."""
    rows = [
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td>{escape(cell_text(value))}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "", [], (), {})
    ]
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"


def rows_html(title: str, columns: Sequence[str], rows: Iterable[Json]) -> str:
    """A table of rows; of many, the first 50 and how many there are. A missing value is empty."""
    every = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(cell_text(row.get(name)))}</td>" for name in columns)
        + "</tr>"
        for row in every[:_MOST_ROWS]
    )
    more = f"<p>The first {_MOST_ROWS} of {len(every):,}.</p>" if len(every) > _MOST_ROWS else ""
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
