"""`report`: a run's report as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.atomic_file import write_file
from capstan.cli.context import shell_of
from capstan.cli.options import Run


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
