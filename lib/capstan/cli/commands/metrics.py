"""`metrics`: figures of the lake for monitoring, told from its tables alone, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.atomic_file import write_file
from capstan.cli.context import shell_of


def metrics(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o",
            help="Write them to this file, whole or not at all; for a collector of text files.",
            metavar="FILE",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Tell figures of streams and runs in the format of Prometheus: frontiers, counts, files."""
    from capstan.reporting.metrics import lake_samples, prometheus

    shell = shell_of(context)
    samples = lake_samples(shell.lake, shell.declarations())
    text = prometheus(samples)
    value: dict[str, object] = {
        "samples": [
            {"metric": each.metric, "value": each.value, "labels": each.tags} for each in samples
        ]
    }
    if output is None:
        shell.output.answer(value, text.removesuffix("\n"))
        return 0
    write_file(output, text)
    shell.output.answer({**value, "file": str(output)}, f"{len(samples)} samples in {output}")
    return 0
