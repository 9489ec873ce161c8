"""Tables of certificates and audit findings."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from capstan.cli.output import cell, facts, table
from capstan.reporting.formatting import approval_text, pipeline_text, workers_text
from capstan.reporting.summaries import audit_text, bounds_text, checks_text

# Longest text of a row in a table, in characters; the JSON has the whole row.
_LONGEST = 100


def certificate_facts(certificate: Mapping[str, object]) -> Table:
    """A certificate as a table of names and values."""
    missing = certificate.get("not_covered")
    left_out = missing if isinstance(missing, Mapping) else {}
    return facts(
        f"certificate of {certificate.get('run')}",
        [
            ("stream", f"{certificate.get('stream')}, at commit {certificate.get('cut')}"),
            ("workers", workers_text(certificate.get("workers"))),
            ("times", bounds_text(certificate.get("since"), certificate.get("until"), cell)),
            ("records", _records(certificate)),
            ("fingerprint", certificate.get("fingerprint")),
            ("complete", _complete(certificate)),
            ("workers left out", workers_text(left_out.get("workers"))),
            ("late, not replayed", certificate.get("late")),
            ("transform", certificate.get("transform")),
            ("pipeline", pipeline_text(certificate.get("pipeline"))),
            ("target", _target(certificate)),
            ("audit", audit_text(certificate.get("audit"), cell)),
            ("checks", checks_text(certificate.get("audit"), cell)),
            ("approved", approval_text(certificate.get("approval"))),
            ("published", certificate.get("published")),
            ("seconds", certificate.get("seconds")),
            ("", ""),
        ],
    )


def finding_table(audit: Mapping[str, object]) -> Table:
    """A table of an audit's sample: differing rows, and rows that fail a check."""
    findings = audit.get("findings")
    return table(
        "",
        ("kind", "worker", "time", "expected", "actual"),
        [
            (
                finding.get("check") or finding["kind"],
                finding["worker"],
                finding["time"],
                *row_pair(finding["expected"], finding["actual"]),
            )
            for finding in (findings if isinstance(findings, list) else [])
        ],
    )


def row_pair(expected: object, actual: object) -> tuple[str, str]:
    """Texts of two rows; when both are present, only the columns that differ."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        differing = [name for name in expected if expected[name] != actual.get(name)]
        return _row(expected, differing), _row(actual, differing)
    return tuple(_row(row, None) for row in (expected, actual))  # type: ignore[return-value]


def _row(row: object, names: list[str] | None) -> str:
    if not isinstance(row, Mapping):
        return ""
    text = ", ".join(f"{n}={row.get(n)}" for n in (row if names is None else names))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _records(certificate: Mapping[str, object]) -> str:
    times = certificate.get("times")
    return cell(certificate.get("records")) + (f" at {cell(times)} times" if times else "")


def _complete(certificate: Mapping[str, object]) -> str:
    frontier = f"frontier {cell(certificate.get('frontier')) or 'empty: closed'}"
    return ("yes" if certificate.get("complete") else "only in part") + f", {frontier}"


def _target(certificate: Mapping[str, object]) -> str:
    version = certificate.get("target_version")
    return f"{certificate.get('target')}" + ("" if version is None else f", version {version}")
