"""`metrics`: metrics of the lake, read from its tables without a JVM."""

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
