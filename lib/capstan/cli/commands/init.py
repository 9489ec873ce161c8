"""`init` and `setup`: the files of a new project, and what Spark needs on this machine."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.output import table
from capstan.cli.progress import Work, watching


class Connector(StrEnum):
    """A connector of Spark, with jars of its own."""

    KAFKA = "kafka"
    S3 = "s3"


def setup(
    context: typer.Context,
    connectors: Annotated[
        list[Connector] | None, typer.Argument(help="Connectors of Spark: kafka, s3.")
    ] = None,
) -> int:
    """Fetch what Spark needs, and make the class archive by which it starts sooner.

    Delta's jars are fetched by themselves when they are missing; connectors are not.
    """
    from capstan.spark import jars
    from capstan.spark.class_archive import make_archive
    from capstan.spark.java import find_java

    shell = shell_of(context)
    wanted = [{"kafka": jars.KAFKA, "s3": jars.S3}[name] for name in connectors or ()]
    with redirect_stdout(sys.stderr), watching(shell.output, Work("setup")):
        java = find_java()
        jars.delta_jars()
        for each in wanted:
            jars.fetch(each)
        archive = make_archive()
    present = [path.name for path in jars.spark_jars()]
    shell.output.answer(
        {"java": java.version, "jars": present, "class_archive": str(archive)},
        f"Java {java.version} at {java.home}",
        f"jars: {', '.join(present) or 'those of Spark'}",
        f"class archive: {archive}",
    )
    return 0


def init(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="The project's folder, made if need be.", metavar="DIR")
    ] = Path(),
    airflow: Annotated[
        Path | None,
        typer.Option(help="Your Airflow's DAG folder, in place of DIR/dags.", metavar="FOLDER"),
    ] = None,
) -> int:
    """Write a project: streams.yaml, a DAG file for Airflow, a pipeline and sample data.

    Existing files are never changed.
    """
    from capstan.scaffold import FileStatus, write_project

    shell = shell_of(context)
    written = write_project(folder, airflow=airflow)
    streams = written[0].path
    kept = [file.path.name for file in written if file.status is FileStatus.KEPT]
    note = f"Kept as they are: {', '.join(kept)}.\n\n" if kept else ""
    given = f"--streams {streams} " if airflow is not None or folder != Path() else ""
    shell.output.answer(
        {"files": [{"path": str(file.path), "status": file.status.value} for file in written]},
        table("", ("", "file"), [(file.status.value, str(file.path)) for file in written]),
        f"{note}Next:\n\n"
        f"  capstan {given}capture orders\n"
        f"  capstan {given}replay orders --into oslo_orders --workers oslo\n"
        f"  capstan {given}backfill revenue_by_day\n\n"
        f"Then declare a stream of yours in {streams}.",
    )
    return 0
