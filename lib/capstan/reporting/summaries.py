"""Facts of plans, certificates and audits, the same for command line, Airflow and pages.

Each caller formats single values in its own way: for a terminal, markdown, or HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capstan.core.json_object import Json
from capstan.reporting.formatting import (
    Show,
    approval_text,
    bounds_text,
    changes_text,
    pipeline_text,
    short_bound,
    size,
    workers_text,
)
from capstan.storage.ledger.certificate import Certificate

Fact = tuple[str, object]
"""A name and a value; None and empty values are not shown."""

_NAMED = 4
_CHANGES = {
    "replace": "replacing what is there of these workers and times",
    "append": "appended to what is there",
    "merge": "merged on its keys",
}
_PUBLISHED = {
    "current": "already published",
    "stale": "published by other code",
    "missing": "not published",
}


def plan_facts(plan: Json, show: Show) -> list[Fact]:
    """The facts of a plan, in reading order; parts of its `Preview.to_json` may be missing."""
    records, times = show(plan.get("records")), show(plan.get("times"))
    files, files_all = show(plan.get("files")), show(plan.get("files_all"))
    stored = plan.get("bytes")
    read = "" if stored is None else f"{files} of {files_all} files, {size(stored)}"
    complete = "yes" if plan.get("complete") else "no: the range can still receive records"
    behind = [f"{label} at {show(at)}" for label, at in (plan.get("behind") or {}).items()]
    covered = [
        f"{c['run']}{' (other code)' if c.get('stale') else ''}" for c in plan.get("covered") or ()
    ]
    counts = plan.get("standing") or {}
    published = [
        f"{show(counts[key])} {text}" for key, text in _PUBLISHED.items() if counts.get(key)
    ]
    stream, workers, parts = plan.get("stream"), plan.get("workers"), plan.get("streams")
    return [
        *_stream_facts(stream, workers, parts, show(plan.get("cut")), show),
        ("workers left out", plan.get("left_out")),
        ("times", bounds_text(plan.get("since"), plan.get("until"), show)),
        ("complete", complete),
        ("frontier", plan.get("frontier") or "empty: closed"),
        ("held back by", ", ".join(behind)),
        ("without a record", plan.get("silent")),
        ("never captured", plan.get("not_on_tape")),
        ("records", f"{records} at {times} times" if records else ""),
        ("to read", read),
        ("late, not replayed", plan.get("late")),
        ("without a time", _timeless_text(plan.get("timeless"), show)),
        ("transform", plan.get("transform")),
        ("pipeline", pipeline_text(plan.get("pipeline"))),
        ("mode", plan.get("mode")),
        ("changes", changes_text(plan.get("changes"))),
        ("target", plan.get("target_path")),
        ("not looked up", _unseen_text(plan.get("unseen"))),
        ("covered already by", ", ".join(covered)),
        ("changed by others since", plan.get("changed")),
        ("of the records", ", ".join(published)),
        ("published by run", plan.get("stands")),
        ("claimed by", plan.get("held_by")),
        ("checks", plan.get("checks")),
        ("approval", "a person decides before it is published" if plan.get("approve") else ""),
    ]


def plan_sentence(plan: Json, show: Show) -> str:
    """What a run of a plan would do, in one sentence."""
    if plan.get("stands"):
        return f"Changes nothing: run {plan['stands']} has published the same."
    workers = plan.get("workers") or ()
    named = ", ".join(workers) if len(workers) <= _NAMED else f"{len(workers):,} workers"
    times = bounds_text(plan.get("since"), plan.get("until"), show)
    by = plan.get("transform") or (plan.get("pipeline") or {}).get("name")
    through = f"through {by}" if by else ""
    how = _CHANGES.get(str(plan.get("mode")), "")
    records = f"{show(plan.get('records'))} records of {plan.get('stream')} ({named})"
    parts = [records, times, through, f"into {plan.get('target')}", how]
    waits = "; a person has to approve it" if plan.get("approve") else ""
    return f"Replays {', '.join(filter(None, parts))}{waits}."


def plan_title(plan: Json) -> str:
    """A short name for a run of a plan: `replay flights EWR 2013-03-10..2013-03-12 into march`."""
    workers, left_out = plan.get("workers") or (), plan.get("left_out")
    named = "+".join(workers) if len(workers) <= _NAMED else f"{len(workers)}-workers"
    bounds = [short_bound(str(plan[key])) if plan.get(key) else "" for key in ("since", "until")]
    parts = ["replay", str(plan.get("stream")), named if left_out else "", "..".join(bounds)]
    target = str(plan.get("target")).rstrip("/").rpartition("/")[2]
    return " ".join([part for part in parts if part.strip(".")] + ["into", target])


def certificate_facts(
    certificate: Certificate, show: Show, *, unchanged: bool = False
) -> list[Fact]:
    """The facts of a certificate, in reading order; an old one or a draft may lack values."""
    c = certificate
    records = show(c.records)
    frontier = show(c.frontier) if c.frontier else "empty: closed"
    version = "" if c.target_version is None else f", version {c.target_version}"
    before = "; already before, nothing changed" if unchanged else ""
    return [
        *stream_facts(c, show),
        ("times", bounds_text(c.since, c.until, show)),
        ("records", f"{records} at {show(c.times)} times" if c.times else records),
        ("fingerprint", c.fingerprint),
        ("complete", f"{'yes' if c.complete else 'only in part'}, frontier {frontier}"),
        ("workers left out", "" if c.streams else workers_text(c.not_covered.workers)),
        ("late, not replayed", c.late),
        ("without a time", _timeless_text(c.timeless, show)),
        ("transform", c.transform),
        ("pipeline", pipeline_text(c.pipeline)),
        ("changes", changes_text(c.changes)),
        ("target", f"{c.target}{version}"),
        ("audit", audit_text(c.audit, show)),
        ("checks", checks_text(c.audit, show)),
        ("approved", approval_text(c.approval)),
        ("published", f"{'yes' if c.published else 'no'}{before}"),
        ("attempt", c.attempt),
        ("seconds", c.seconds),
    ]


def difference_facts(difference: Json, show: Show) -> list[Fact]:
    """The facts of a replay's changes to its target (`Difference.to_json`)."""
    differing, cells = show(difference.get("differing")), show(difference.get("cells"))
    return [
        ("rows added", show(difference.get("added"))),
        ("rows removed", show(difference.get("removed"))),
        ("rows changed", show(difference.get("changed"))),
        ("cells", f"{differing} of {cells} change"),
        ("new columns", difference.get("new_columns")),
        ("foreign rows", show(difference.get("foreign"))),
    ]


def stream_facts(certificate: Certificate, show: Show) -> list[Fact]:
    """The stream of a certificate with its workers; several streams one by one."""
    c = certificate
    return _stream_facts(c.stream, c.workers, c.streams, str(c.cut), show)


def _stream_facts(
    stream: object, workers: object, parts: Sequence[Json] | None, commit: str, show: Show
) -> list[Fact]:
    if not parts:
        return [("stream", f"{stream}, at commit {commit}"), ("workers", workers_text(workers))]
    facts: list[Fact] = []
    for part in parts:
        at, records = show(part["cut"]), show(part["records"])
        frontier = show(part["frontier"]) or "closed"
        text = f"{part['stream']}, at commit {at}: {records} records, frontier {frontier}"
        facts.append((f"stream for {part['source']}", text))
        for name, listed in (("workers", "workers"), ("left out", "left_out")):
            facts.append((f"{name} of {part['source']}", workers_text(part.get(listed))))
    return facts


def _unseen_text(name: object) -> str:
    """That a table of a catalog may be elsewhere than a plan without Spark says."""
    return f"{name} is new to the lake; the run asks the catalog where it is" if name else ""


def _timeless_text(timeless: Json | None, show: Show) -> str:
    """The records under no element of a stamp; empty for none."""
    names = {"read": "records", "left_out": "records left out: ranges and pipelines have times"}
    return ", ".join(f"{show(n)} {names[name]}" for name, n in (timeless or {}).items() if n)


def audit_text(audit: Json | None, show: Show) -> str:
    """The result of an audit, on one line; empty for none."""
    if not audit:
        return ""
    kind = f" ({audit['kind']})" if audit.get("kind") else ""
    cells, differing = audit.get("cells"), audit.get("differing")
    if audit.get("passed"):
        counted = "" if cells is None else f", {show(cells)} cells"
        near = audit.get("near") or {}
        columns = ", ".join(map(str, near.get("columns", ())))
        within = f"; {columns} within {near['tolerance']}" if columns else ""
        sample = audit.get("engine")
        part = f"; {show(sample['cells'])} of them also by the engine" if sample else ""
        for read in audit.get("inputs") or ():
            part += (
                f"; a share of {read['share']:g} of the records of {read['stream']}, all counted"
            )
        return f"passed ({audit['kind']}{counted}{within}{part})" if kind else "passed"
    if differing:
        return f"failed{kind}: {show(differing)} of {show(cells)} cells differ"
    broken = [f"{c.name} {c.text}" for c in check_facts(audit, show) if not c.met]
    return f"failed{kind}: check {', '.join(broken)}" if broken else f"failed{kind}"


@dataclass(frozen=True, slots=True)
class CheckFact:
    """The result of one declared check; `text` has the number of failing rows."""

    name: str
    rule: str
    met: bool
    text: str


def check_facts(audit: Json | None, show: Show) -> list[CheckFact]:
    """The results of an audit's checks; empty when there were none."""
    return [
        CheckFact(
            str(check["name"]),
            str(check["rule"]),
            not check["failing"],
            f"not met by {show(check['failing'])} rows" if check["failing"] else "met by all rows",
        )
        for check in (audit or {}).get("checks") or ()
    ]


def checks_text(audit: Json | None, show: Show) -> str:
    """The results of an audit's checks on one line."""
    return ", ".join(f"{c.name} ({c.rule}): {c.text}" for c in check_facts(audit, show))
