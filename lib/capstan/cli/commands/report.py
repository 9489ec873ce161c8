"""`report` and `metrics`: a run's report, and metrics of the lake, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.options import Run
from capstan.cli.output import write_file


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
    from capstan.reporting.html_report import run_report

    shell = shell_of(context)
    text = run_report(shell.lake, shell.declarations(), run)
    size = write_file(output, text)
    shell.output.answer(
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
        shell.output.answer(value, text.removesuffix("\n"))
        return 0
    write_file(output, text)
    shell.output.answer({**value, "file": str(output)}, f"{len(samples)} samples in {output}")
    return 0
