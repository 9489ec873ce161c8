"""`report`: what a run played and what was found of it, as one file to attach to a ticket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.options import Run
from capstan.cli.shell import shell_of
from capstan.errors import BadRequest


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
    from capstan.views.report import run_report

    shell = shell_of(context)
    text = run_report(shell.lake, shell.declarations(), run)
    size = _write(output, text)
    shell.output.answer(
        {"run": run, "report": str(output), "bytes": size}, f"{output}: report of {run}"
    )
    return 0


def _write(output: Path, text: str) -> int:
    """Write the file, whole or not at all; its size in bytes.

    Raises:
        BadRequest: `CAP-OUTPUT` when it cannot be written there.
    """
    content = text.encode("utf-8")
    unfinished = output.with_name(f".{output.name}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(output)
    except (OSError, ValueError) as error:
        unfinished.unlink(missing_ok=True)
        raise BadRequest(
            "CAP-OUTPUT",
            f"cannot write {output}: {error}",
            "name a file in a folder that is there",
            file=str(output),
        ) from error
    return len(content)
