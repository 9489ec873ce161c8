"""`status`, `streams`, `show`, `runs`, `report`, `metrics`: what tables say, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.options import AsOf, Run, Stream
from capstan.cli.output import facts, frontier, row_table, same, table, write_file
from capstan.core.json_object import Json
from capstan.errors import SystemFailureError


def status(context: typer.Context) -> int:
    """List what needs a person, with what to do about it; exits with 1 if anything does.

    Runs that wait for approval, failed and dead runs, stalled frontiers, violations, and intervals
    of declared replays that are missing, stale or changed by others.
    """
    from capstan.reporting.attention.gather import read_attention

    shell = shell_of(context)
    listed = read_attention(shell.lake, shell.declarations())
    value = {"lake": shell.lake.root, **listed.to_json()}
    if not listed.items:
        return shell.output.checked(value, None, "nothing needs attention")
    shown = row_table(
        "",
        {
            "kind": "kind",
            "since": lambda row: row["since"] or row["first"],
            "concerns": lambda row: f"{row['subject']} {row['name']}",
            "what": "text",
            "what to do": "command",
        },
        [item.to_json() for item in listed.items],
    )
    return shell.output.checked(value, listed.error, shown, listed.more)


def streams(context: typer.Context) -> int:
    """List the streams, captured and declared; exits with 5 if a tape cannot be read."""
    from capstan.reporting import listings

    shell = shell_of(context)
    rows = listings.stream_rows(shell.lake, shell.declarations())
    failed = [row for row in rows if "error" in row]
    failure = {key: failed[0][key] for key in ("error", "message", "hint")} if failed else {}
    shell.output.result(
        {"lake": shell.lake.root, "streams": rows, **failure},
        row_table(
            f"streams of {shell.lake.root}",
            {
                "stream": "stream",
                "on tape": lambda row: row.get("error") or row["captured"],
                "commit": "cut",
                **same("workers", "events", "records", "late"),
                "frontier": frontier,
            },
            rows,
        ),
    )
    for row in () if shell.output.as_json else failed:
        shell.output.error(row)
    return SystemFailureError.exit_code if failed else 0


def show(context: typer.Context, stream: Stream, as_of: AsOf = None) -> int:
    """Show a tape: workers with events, records, capabilities and frontiers; late records."""
    from capstan.reporting import listings

    shell = shell_of(context)
    value: Json = listings.tape_facts(shell.lake, stream, as_of)
    verified = value["verified"]
    shell.output.result(
        value,
        facts(
            f"stream {stream}",
            [
                ("commit", f"{value['cut']} of {value['newest']}"),
                ("times", value["times"]),
                ("frontier", frontier(value)),
                ("late", value["late"]),
                ("verified", verified and _VERIFIED.format(**verified)),
                ("retired before", value["retired"]),
                ("columns", value["columns"]),
                ("", ""),
            ],
        ),
        row_table(
            "",
            {
                **same("worker", "label", "events", "records"),
                "frontier": frontier,
                "holdings": lambda row: [f"{time} x{count}" for time, count in row["holdings"]],
                "verified to": "verified",
            },
            value["workers"],
        ),
    )
    return 0


_VERIFIED = "valid up to commit {cut}, checked at {at}"


def runs(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Option(help="Only runs into this target.", metavar="TABLE")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Only runs of this stream.", metavar="STREAM")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="List at most this many; 0 for all.")] = 20,
) -> int:
    """List runs, newest first: state, workers, times, target."""
    from capstan.reporting import listings

    shell = shell_of(context)
    rows = listings.run_rows(shell.lake, shell.declarations(), target, stream)
    shown = rows[:limit] if limit else rows
    columns = (
        "run", "stream", "target", "state", "attempts", "records", "since", "until", "version",
        "at",
    )  # fmt: skip
    more = len(rows) - len(shown)
    shell.output.result(
        {"runs": shown, "total": len(rows)},
        table(
            "", columns, [[_short(row[name], shell.lake.root) for name in columns] for row in shown]
        ),
        f"{len(rows)} runs" + (f", {more} older ones not shown" if more else ""),
    )
    return 0


def _short(value: object, lake: str) -> object:
    """The path of a table of the lake, shortened to the table's name."""
    return value.removeprefix(f"{lake}/tables/") if isinstance(value, str) else value


def report(
    context: typer.Context,
    run: Run,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The file to write; an existing one is replaced.",
            metavar="FILE",
        ),
    ],
) -> int:  # fmt: skip
    """Write a run's HTML report: certificate, uncovered parts, late records, differences, plots."""
    from capstan.reporting.html import run_report

    shell = shell_of(context)
    text = run_report(shell.lake, shell.declarations(), run)
    size = write_file(output, text)
    shell.output.result(
        {"run": run, "report": str(output), "bytes": size}, f"{output}: report of {run}"
    )
    return 0


def metrics(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o",
            help="Write them atomically to this file, for a textfile collector.",
            metavar="FILE",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Print metrics of streams and runs in Prometheus format: frontiers, counts, files."""
    from capstan.reporting.metrics import lake_samples, prometheus

    shell = shell_of(context)
    samples = lake_samples(shell.lake, shell.declarations())
    text = prometheus(samples)
    value: dict[str, object] = {
        "samples": [
            {"metric": sample.metric, "value": sample.value, "labels": sample.tags}
            for sample in samples
        ]
    }
    if output is None:
        shell.output.result(value, text.removesuffix("\n"))
        return 0
    write_file(output, text)
    shell.output.result({**value, "file": str(output)}, f"{len(samples)} samples in {output}")
    return 0
