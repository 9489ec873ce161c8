"""All commands in one lake, by a driver of its own: `python -m tests.support.lake_verbs RESULT`.

The lake is the one that `CAPSTAN_KEPT_LAKE` names, see `tests.support.kept_lake`; the way to it is
in the environment. RESULT is a JSON file: what each command printed, and the contents of all
tables.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from pyarrow import fs
from pyspark.sql import SparkSession

import capstan
from capstan.capture.query.attached_query import CaptureInto
from capstan.spark.session import build_session
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake, list_files
from tests.support import kept_lake, lake_figures
from tests.support.kept_lake import UNTIL, run, run_of
from tests.support.lake_figures import Json
from tests.support.small_spark import MASTER, SHRUNK

_VERSIONS = (
    "orders --into versions --mode merge --keys place --sequence-by at,id "
    "--delete-when 'amount > 90' --history"
)
_PLAN = f"plan orders --into copies --workers a,b --until {UNTIL} --diff"
_CHOSEN = ("copy", "append", "merge", "direct", "hourly", "managed", "numbers")
_COMMANDS = (
    "backfill by_day --chunk 1 --until 2024-05-02", "gaps by_day",
    f"replay orders --into cheap --until {UNTIL}",
    f"audit orders --against {kept_lake.LAKE}/tables/copies --workers a,b --until {UNTIL}",
    "retire clicks --before 2024-05-01T01:00", "maintain orders",
    "streams", "runs --limit 0", "late orders", "show orders", "explain totals", "staging",
    "verify orders --deep --source", "verify clicks --deep", _PLAN,
    "state totals", "state totals rescale 3 --into visits", f"replay {kept_lake.VISITS}",
    "backfill running",
)  # fmt: skip
"""Commands after the replays; the last ones go on after maintenance."""
_RUN = re.compile(r"\b(\w+-)[0-9a-f]{8}(-\d+)")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_DRIVER_MINUTES = 50


def in_driver(lake: str, environment: Mapping[str, str], folder: Path) -> Json:
    """The figures of a lake that a driver makes, without what names the lake itself."""
    result = folder / "figures.json"
    variables = {**os.environ, **environment, "CAPSTAN_KEPT_LAKE": lake}
    with Path(f"{kept_lake.ROOT}.lock").open("w") as lock:
        # Another test run on this machine uses the same place for its sources.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(result)],
            env=variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=60 * _DRIVER_MINUTES,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    text = result.read_text("utf-8")
    for place in (lake.removesuffix("/lake"), str(kept_lake.ROOT)):
        text = text.replace(place, "PLACE")
    # The name of a run has a hash of its target's place.
    text = _UUID.sub("UUID", _RUN.sub(r"\1HASH\2", text))
    # With other ids, rows have another order.
    actual = lake_figures.comparable(json.loads(text, object_hook=_alike))
    assert isinstance(actual, dict)
    return actual


def _alike(value: Json) -> Json:
    """An object without the identity of a run, which has its target's place, and sizes of files."""
    return {name: inner for name, inner in value.items() if name not in ("identity", "rewritten")}


def verbs(session: SparkSession) -> Iterator[tuple[str, Json]]:
    """Run all commands; yields the name and the result of each."""
    kept_lake.remove()
    kept_lake.ROOT.mkdir(parents=True)
    kept_lake.declare(2)
    yield from kept_lake.fill_tapes()
    for name in _CHOSEN:
        yield f"replay {name}", run(f"replay {kept_lake.REPLAYS[name]}")
    yield from _merge_by_sequence()
    yield from _decide()
    for command in _COMMANDS:
        yield command, run(command)
    yield "metrics", _metrics()
    yield "capture_into", _capture_into(session)
    yield "an attempt of a job", _attempt()


def _decide() -> Iterator[tuple[str, Json]]:
    """Runs that are held: rejected, published, and approved by a person."""
    for answer in ("reject", "publish"):
        held = run(f"replay orders --into {answer}ed --until {UNTIL} --hold")
        yield f"hold, to {answer}", held
        yield answer, run(f"{answer} {run_of(held)}")
    yield "report", _report(run_of(held))
    yield "audit", run(f"audit {run_of(held)}")
    approved = run(f"replay {kept_lake.APPROVED} --hold")
    yield "hold for approval", approved
    yield "approve", kept_lake.approve(run_of(approved))


def _merge_by_sequence() -> Iterator[tuple[str, Json]]:
    later = run(f"replay {_VERSIONS} --since 2024-05-01T06:00 --until {UNTIL}")
    yield "versions", later
    yield "older versions", run(f"replay {_VERSIONS} --until 2024-05-01T06:00")
    again = run(f"replay {_VERSIONS} --since {UNTIL} --until 2024-05-01T18:00")
    yield "more versions", again
    yield "roll back versions", run(f"rollback {run_of(again)}")


def _report(name: str) -> Json:
    path = kept_lake.ROOT / "report.html"
    done = run(f"report {name} --output {path}")
    text = path.read_text("utf-8")
    return {**done, "whole": name in text and "</html>" in text}


def _metrics() -> Json:
    done = run("metrics")
    printed = done["printed"]
    assert isinstance(printed, dict)
    names = sorted({sample["metric"] for sample in printed["samples"]})
    return {"code": done["code"], "metrics": names}


def _capture_into(session: SparkSession) -> Json:
    into = capstan.capture_into(
        "attached",
        lake=kept_lake.LAKE,
        workers={"by": "key", "columns": ["id"], "count": 2},
        time={"domain": "event", "column": "at", "every": "1 hour", "lateness": "2 hours"},
    )
    assert isinstance(into, CaptureInto)
    folder = str(kept_lake.ROOT / "sources" / "orders")
    orders = session.readStream.schema(session.read.parquet(folder).schema).parquet(folder)
    # The query has its checkpoint there as well.
    place = f"{kept_lake.LAKE.removesuffix('/lake')}/checkpoints/attached"
    writer = orders.writeStream.foreachBatch(into).option("checkpointLocation", place)
    for _ in range(2):
        writer.trigger(availableNow=True).start().awaitTermination()
    return {"verified": run("verify attached --deep")}


def _attempt() -> Json:
    from capstan.jobs import handlers
    from capstan.jobs.main import main

    attempt = JobAttempt(Lake.at(kept_lake.LAKE), "asked")
    attempt.prepare({"stream": "orders"}, (kept_lake.ROOT / "streams.yaml").read_text("utf-8"))
    request = ["--lake", kept_lake.LAKE, "--attempt", "asked"]
    # The job would stop the session.
    with mock.patch.object(SparkSession, "stop"), redirect_stdout(io.StringIO()):
        code = main(handlers.verify, request, lambda _: build_session())
    outcome = attempt.outcome()
    return {"code": code, "answer": None if outcome is None else dict(outcome.report)}


def contents(place: str) -> dict[str, Json]:
    """The contents of the tables at a place, by a copy of its files."""
    with tempfile.TemporaryDirectory(prefix="capstan-lake-") as folder:
        root = place.partition("://")[2] or place
        for info in list_files(place):
            target = Path(folder, info.path.removeprefix(root).lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(f"s3://{info.path}" if "://" in place else info.path, str(target))
        return lake_figures.tables(Path(folder))


def main(result: Path) -> None:
    """Run all commands, and write what they gave."""
    session = build_session("capstan-tests", master=MASTER, extra=SHRUNK)
    commands = dict(verbs(session))
    actual = {"commands": commands, "tables": contents(kept_lake.LAKE.removesuffix("/lake"))}
    session.stop()
    kept_lake.remove()
    result.write_text(json.dumps(lake_figures.comparable(actual), default=str), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
