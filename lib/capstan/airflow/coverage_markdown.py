"""Reports of gaps and backfills as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capstan.airflow.markdown import markdown_cell
from capstan.core.json_object import Json
from capstan.reporting.formatting import workers_text

_SHOWN = 100


def gaps_markdown(entries: Iterable[Json]) -> str:
    """A report of gaps as markdown: interval counts per replay, then the uncovered intervals."""
    lines = ["## Coverage of declared replays", "", "| replay | target | intervals |"]
    lines.append("| --- | --- | --- |")
    parts: list[str] = []
    for entry in entries:
        text = entry.get("message", "")
        if "counts" in entry:
            text = ", ".join(f"{n} {state}" for state, n in entry["counts"].items() if n) or "none"
        lines.append(_row(entry.get("replay"), entry.get("target"), text))
        parts += _uncovered(entry)
    return "\n".join(lines + parts)


def backfills_markdown(result: Json) -> str:
    """The result of the job `backfill` as markdown."""
    lines = ["## Backfills", "", "| since | until | workers | records | version | run | |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for run in runs_of(result):
        status = "waiting for approval" if run.get("published") is False else "published"
        if run.get("unchanged"):
            status = "already published"
        if "error" in run:
            status = f"{run['error']}: {run.get('message')}"
        elif run.get("run") is None:
            status = "not started"
        workers = workers_text(run.get("workers"))
        shown = ", ".join(map(str, workers)) if isinstance(workers, list) else workers or "all"
        cells = (run.get(key) for key in ("records", "target_version", "run"))
        lines.append(_row(run.get("since"), run.get("until"), shown, *cells, status))
    return "\n".join(lines)


def runs_of(result: Json) -> Iterator[Json]:
    """The runs in the result of one backfill, or of several."""
    for backfill in result.get("backfills", [result]):
        yield from backfill.get("runs", ())


def _uncovered(entry: Json) -> list[str]:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches = entry.get("stretches")
    lines = []
    if stretches:
        lines = ["", f"### {entry.get('replay')}", "", "| since | until | state | workers |"]
        lines.append("| --- | --- | --- | --- |")
        for stretch in stretches[:_SHOWN]:
            missing = ", ".join(stretch["missing"])
            lines.append(_row(stretch["since"], stretch["until"], stretch["state"], missing))
        if len(stretches) > _SHOWN:
            lines += ["", f"and {len(stretches) - _SHOWN} more"]
    problem = entry.get("not_filled")
    return [*lines, "", f"Not filled: {problem}"] if problem else lines


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"
