"""`init`, `setup`, `demo` and `doctor`: the first commands that a new user runs."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.output import row_table, same
from capstan.cli.progress import Work, watching
from capstan.cli.tables import certificate_table
from capstan.core.environment import lake_of
from capstan.core.json_object import Json
from capstan.errors.shell_command import shell_line
from capstan.replay.result import ReplayResult


class Connector(StrEnum):
    """A connector of Spark, with jars of its own."""

    KAFKA = "kafka"
    S3 = "s3"
    AVRO = "avro"


def setup(
    context: typer.Context,
    connectors: Annotated[
        list[Connector] | None, typer.Argument(help="Connectors of Spark: kafka, s3, avro.")
    ] = None,
) -> int:
    """Fetch what Spark needs, and make the class archive by which it starts sooner.

    Delta's jars are fetched by themselves when they are missing; connectors are not.
    """
    from capstan.spark.setup import jars
    from capstan.spark.setup.class_archive import make_archive
    from capstan.spark.setup.java import find_java

    shell = shell_of(context)
    known = {"kafka": jars.KAFKA, "s3": jars.S3, "avro": jars.AVRO}
    wanted = [known[name] for name in connectors or ()]
    with redirect_stdout(sys.stderr), watching(shell.output, Work("setup")):
        java = find_java()
        jars.delta_jars()
        for each in wanted:
            jars.fetch(each)
        archive = make_archive()
    present = [path.name for path in jars.spark_jars()]
    shell.output.result(
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
    from capstan.cli.scaffold import FileStatus, write_project

    shell = shell_of(context)
    written = write_project(folder, airflow=airflow)
    config = written[0].path
    kept = [file.path.name for file in written if file.status is FileStatus.KEPT]
    note = f"Kept as they are: {', '.join(kept)}.\n\n" if kept else ""
    given = ["--config", config] if airflow is not None or folder != Path() else []
    lake = (
        ""
        if airflow is None
        else "\n\nSet CAPSTAN_LAKE to the same place for Airflow and for these commands."
    )
    rows = [{"path": str(file.path), "status": file.status.value} for file in written]
    shell.output.result(
        {"files": rows},
        row_table("", {"": "status", "file": "path"}, rows),
        f"{note}Next:\n\n"
        f"  {shell_line('capstan', *given)} capture orders\n"
        f"  {shell_line('capstan', *given)} replay orders --into oslo_orders --workers oslo\n"
        f"  {shell_line('capstan', *given)} backfill revenue_by_day\n\n"
        f"Then declare a stream of your own in {config}.{lake}",
    )
    return 0


def doctor(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also start Spark, and write and read a small table.")
    ] = False,
) -> int:
    """Check what Capstan needs: what is installed, what is missing, how to fix it."""
    from capstan.cli.doctor import diagnose

    shell = shell_of(context)
    with redirect_stdout(sys.stderr), watching(shell.output, Work("doctor")):
        findings = diagnose(lake_of(shell.place), deep=deep)
    ok = all(finding.ok for finding in findings)
    rows = [{"what": f.subject, "ok": f.ok, "found": f.detail, "mend": f.remedy} for f in findings]
    shell.output.result(
        {"ok": ok, "findings": rows},
        row_table("", {"": _verdict, **same("what", "found"), "what to do": "mend"}, rows),
        "everything is in place" if ok else "something is missing: see the column `what to do`",
    )
    return 0 if ok else 1


def _verdict(row: Json) -> str:
    return "ok" if row["ok"] else "WRONG"


def demo(context: typer.Context) -> int:
    """Run the main job on real flight data, end to end."""
    from capstan import Context
    from capstan.demo import job as main_job

    shell = shell_of(context)
    if shell.config is None:
        shell.config = str(main_job.DECLARATIONS)
    config = shell.declarations(required=True)
    main_job.require_declared(config)
    began = time.monotonic()
    results: list[dict[str, object]] = []
    _say(shell, f"in the lake {shell.lake.root}")
    with shell.spark(Work("demo")) as spark:
        ctx = Context(shell.lake.root, config=shell.config, spark=spark)
        for number, step in enumerate(main_job.STEPS, start=1):
            start = time.monotonic()
            _say(shell, f"{number}. {step.title}")
            done = step.run(ctx)
            seconds = round(time.monotonic() - start, 1)
            about = {"step": step.name, "changed": done.changed, "seconds": seconds}
            results.append({**done.facts, **about})
            _say(shell, f"   {done.line} ({seconds} s)")
    changed = any(result["changed"] for result in results)
    seconds = round(time.monotonic() - began, 1)
    shell.output.result(
        {"lake": shell.lake.root, "changed": changed, "seconds": seconds, "steps": results},
        *(certificate_table(ReplayResult.from_json(each)) for each in results if "run" in each),
        "" if changed else "Nothing changed: all of this was already done.\n",
        main_job.where_to_look(shell.lake),
    )
    return 0


def _say(shell: Shell, line: str) -> None:
    if not shell.output.as_json:
        shell.output.note(line)
