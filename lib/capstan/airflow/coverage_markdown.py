"""Reports of gaps and backfills as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capstan.airflow.markdown import markdown_table
from capstan.core.json_object import Json
from capstan.reporting.formatting import workers_text

_SHOWN = 100


def gaps_markdown(entries: Iterable[Json]) -> str:
    """A report of gaps as markdown: interval counts per replay, then the uncovered intervals."""
    rows = []
    uncovered: list[str] = []
    for entry in entries:
        text = entry.get("message", "")
        if "counts" in entry:
            text = ", ".join(f"{n} {state}" for state, n in entry["counts"].items() if n) or "none"
        rows.append((entry["replay"], entry["target"], text))
        uncovered += _uncovered(entry)
    table = markdown_table(("replay", "target", "intervals"), rows)
    return "\n".join(["## Coverage of declared replays", "", *table, *uncovered])


def backfills_markdown(result: Json) -> str:
    """The result of the job `backfill` as markdown."""
    rows = []
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
        rows.append((run.get("since"), run.get("until"), shown, *cells, status))
    columns = ("since", "until", "workers", "records", "version", "run", "")
    return "\n".join(["## Backfills", "", *markdown_table(columns, rows)])


def runs_of(result: Json) -> Iterator[Json]:
    """The runs in the result of one backfill, or of several."""
    for backfill in result.get("backfills", [result]):
        yield from backfill.get("runs", ())


def _uncovered(entry: Json) -> list[str]:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches, lines = entry.get("stretches"), []
    if stretches:
        rows = [
            (part["since"], part["until"], part["state"], ", ".join(part["missing"]))
            for part in stretches[:_SHOWN]
        ]
        table = markdown_table(("since", "until", "state", "workers"), rows)
        lines = ["", f"### {entry['replay']}", "", *table]
        if len(stretches) > _SHOWN:
            lines += ["", f"and {len(stretches) - _SHOWN} more"]
    problem = entry.get("not_filled")
    return [*lines, "", f"Not filled: {problem}"] if problem else lines
