"""`report`: what a run played and what was found of it, as one file to attach to a ticket."""

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
            "--output", "-o", help="The file that is written; one that is there is replaced.",
            metavar="FILE",
        ),
    ],
) -> int:  # fmt: skip
    """Write a run's report: certificate, what is not covered, late rows, differences, plots."""
    from capstan.reporting.html_report import run_report

    shell = shell_of(context)
    text = run_report(shell.lake, shell.declarations(), run)
    size = write_file(output, text)
    shell.output.answer(
        {"run": run, "report": str(output), "bytes": size}, f"{output}: report of {run}"
    )
    return 0
