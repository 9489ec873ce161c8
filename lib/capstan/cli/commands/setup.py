"""`demo` and `doctor`: the first commands that anybody runs."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from typing import Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.output import table
from capstan.cli.progress import Work, watching
from capstan.cli.tables import certificate_facts


def doctor(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also start Spark, and write and read a small table.")
    ] = False,
) -> int:
    """Look at what Capstan needs: what is there, what is wrong, and how to mend it."""
    from capstan.doctor import diagnose

    shell = shell_of(context)
    with redirect_stdout(sys.stderr), watching(shell.output, Work("doctor")):
        found = diagnose(shell.place, deep=deep)
    ok = all(each.ok for each in found)
    shell.output.answer(
        {
            "ok": ok,
            "findings": [
                {"what": each.what, "ok": each.ok, "found": each.found, "mend": each.mend}
                for each in found
            ],
        },
        table(
            "",
            ("", "what", "found", "what to do"),
            [("ok" if f.ok else "WRONG", f.what, f.found, f.mend) for f in found],
        ),
        "all is there" if ok else "something is missing: see what to do",
    )
    return 0 if ok else 1


def demo(context: typer.Context) -> int:
    """Do the main job on real flights, end to end, and say where to look further."""
    from capstan.demo import job as main_job

    shell = shell_of(context)
    declarations = shell.declarations(required=True)
    main_job.require_declared(declarations, shell.lake)
    began = time.monotonic()
    results: list[dict[str, object]] = []
    _say(shell, f"in the lake {shell.lake.root}")
    with shell.spark(Work("demo")) as spark:
        job = main_job.MainJob(spark, shell.lake, declarations)
        for number, step in enumerate(main_job.STEPS, start=1):
            start = time.monotonic()
            _say(shell, f"{number}. {step.title}")
            done = step.run(job)
            seconds = round(time.monotonic() - start, 1)
            about = {"step": step.name, "changed": done.changed, "seconds": seconds}
            results.append({**done.facts, **about})
            _say(shell, f"   {done.line} ({seconds} s)")
    changed = any(each["changed"] for each in results)
    seconds = round(time.monotonic() - began, 1)
    shell.output.answer(
        {"lake": shell.lake.root, "changed": changed, "seconds": seconds, "steps": results},
        *(certificate_facts(each) for each in results if "run" in each),
        "" if changed else "Nothing was changed: all of this stood already.\n",
        main_job.where_to_look(shell.lake),
    )
    return 0


def _say(shell: Shell, line: str) -> None:
    if not shell.output.to_json:
        shell.output.note(line)
