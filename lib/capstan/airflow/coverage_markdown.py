"""Reports of gaps and backfills as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from capstan.airflow.markdown import markdown_cell
from capstan.reporting.formatting import workers_text

_SHOWN = 100


def gaps_markdown(entries: Iterable[Mapping[str, object]]) -> str:
    """A report of gaps as markdown: interval counts per replay, then the uncovered intervals."""
    lines = ["## Coverage of declared replays", "", "| replay | target | intervals |"]
    lines.append("| --- | --- | --- |")
    parts: list[str] = []
    for entry in entries:
        counts = entry.get("counts")
        text = str(entry.get("message", ""))
        if isinstance(counts, Mapping):
            text = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "none"
        lines.append(_row(entry.get("replay"), entry.get("target"), text))
        parts += _uncovered(entry)
    return "\n".join(lines + parts)


def backfills_markdown(result: Mapping[str, object]) -> str:
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


def runs_of(result: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The runs in the result of one backfill, or of several."""
    backfills = result.get("backfills")
    for backfill in backfills if isinstance(backfills, list) else [result]:
        runs = backfill.get("runs")
        yield from runs if isinstance(runs, list) else ()


def _uncovered(entry: Mapping[str, object]) -> list[str]:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches = entry.get("stretches")
    lines = []
    if isinstance(stretches, list) and stretches:
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
