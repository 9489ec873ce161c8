"""Tables of certificates and audit findings."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from capstan.cli.output import cell, facts, table
from capstan.reporting.summaries import certificate_facts

# Longest text of a row in a table, in characters; the JSON has the whole row.
_LONGEST = 100


def certificate_table(certificate: Mapping[str, object]) -> Table:
    """A certificate as a table of names and values."""
    title = f"certificate of {certificate.get('run')}"
    return facts(title, [*certificate_facts(certificate, cell), ("", "")])


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
