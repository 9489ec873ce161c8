"""Commands that make a lake with all kinds of tables and runs, and commands that continue it.

Both use the command line only, which is stable, so this module runs with any version of the code.
See `tests/formats/README.md`.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.lake_figures import Json

ROOT = Path("/tmp/capstan-kept-lake")
"""The lake's fixed location: ledgers name tables by absolute path."""
LAKE = os.environ.get("CAPSTAN_KEPT_LAKE") or f"{ROOT}/lake"
"""The lake: the folder in `ROOT`, or a place elsewhere, with the same sources."""

PIPELINES = ("hourly", "managed", "totals")
"""The pipelines of `tests/support/shop.py`."""
START = datetime(2024, 5, 1, tzinfo=UTC)
HALF = timedelta(minutes=30)

DECLARED = """
streams:
  orders:
    description: Orders of three places
    source: {format: parquet, path: ROOT/sources/orders, options: {maxFilesPerTrigger: 1}}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
    late: dead-letter
  clicks:
    source: {format: parquet, path: ROOT/sources/clicks, options: {maxFilesPerTrigger: 1}}
    workers: {by: key, columns: [id], count: COUNT}
    time: {domain: event, column: at, every: 15 minutes, lateness: 1 hour}
    late: advance
  batches:
    source: {format: parquet, path: ROOT/sources/batches, options: {maxFilesPerTrigger: 1}}
    workers: {by: key, columns: [place], count: 2}
    time: {domain: epoch}
  history:
    source: {format: parquet, path: ROOT/sources/history, options: {maxFilesPerTrigger: 1}}
    workers: {by: column, column: place, labels: [a, b, c]}
    time: {domain: "epoch, event", column: at, every: 1 hour, lateness: 2 hours}
  parts:
    source:
      format: json
      path: ROOT/sources/parts
      schema: "id BIGINT, at STRING, amount INT"
      options: {maxFilesPerTrigger: 1}
    workers: {by: partition}
    time: {domain: event, column: at, every: 1 hour, lateness: 1 hour}
transforms:
  by_day:
    sql: |
      SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS orders,
        sum(amount) AS amount, sum(price) AS paid
      FROM records GROUP BY _worker, date_trunc('DAY', _time.event)
    time: day
    grain: 1 day
    worker: _worker
  latest:
    sql: |
      SELECT place, max(_time.event) AS at, count(*) AS orders, sum(amount) AS amount
      FROM records GROUP BY place
    keys: [place]
  large: {function: "tests.support.shop:large", time: hour, worker: _worker}
  clicks_by_hour:
    sql: |
      SELECT date_trunc('HOUR', _time.event) AS hour, count(*) AS clicks
      FROM records GROUP BY date_trunc('HOUR', _time.event)
    time: hour
    grain: 1 hour
pipelines:
  hourly: tests.support.shop:hourly
  totals: tests.support.shop:totals
  managed: tests.support.shop:managed
targets:
  copies: {description: Orders as they are on tape}
  outside: {path: OUTSIDE, worker: place, time: at, columns: [id, amount]}
  cheap:
    checks: [{name: cheap, sql: amount < 50}]
  by_day:
    time: day
    checks: [{not_null: [day, orders]}, {range: {column: orders, min: 1, max: 48}}]
replays:
  march:
    stream: orders
    workers: [a, b]
    since: 2024-05-01
    until: 2024-05-01T12:00
    target: march
  by_day:
    stream: orders
    since: 2024-05-01
    until: 2024-05-05
    transform: by_day
    target: by_day
    schedule: "@daily"
  running: {stream: orders, pipeline: totals, sink: running, target: running, follow: running}
"""


def declare(count: int, folder: Path = ROOT) -> None:
    """Write `streams.yaml`, with `count` workers for the stream `clicks`."""
    values = {
        "ROOT": str(ROOT),
        "OUTSIDE": f"{LAKE.removesuffix('/lake')}/outside",
        "COUNT": str(count),
    }
    text = DECLARED
    for name, value in values.items():
        text = text.replace(name, value)
    (folder / "streams.yaml").write_text(text, encoding="utf-8")


Row = tuple[int, "str | None", "datetime | None", "int | None", float]


def rows(numbers: Iterable[int], step: timedelta = HALF) -> list[Row]:
    """Rows in order of time, each at one of three places."""
    return [(n, "abc"[n % 3], START + n * step, n * 7 % 100, n * 0.1) for n in numbers]


LATE: list[Row] = [
    (900, "a", START, 1, 0.5),
    (901, "b", START + HALF, 2, 0.25),
    (902, None, START + 24 * HALF, 3, 0.125),
    (903, "c", None, 4, 0.0625),
]


def lay(stream: str, number: int, content: Sequence[Row]) -> None:
    """Write one file of a source; its modification time follows from its number."""
    folder = ROOT / "sources" / stream
    folder.mkdir(parents=True, exist_ok=True)
    names = {"id": pa.int64(), "place": pa.string(), "at": pa.timestamp("us", "UTC"),
             "amount": pa.int32(), "price": pa.float64()}  # fmt: skip
    columns = zip(zip(*content, strict=True), names.values(), strict=True)
    table = pa.table([pa.array(values, kind) for values, kind in columns], names=list(names))
    pq.write_table(table, folder / f"{number}.parquet", compression="zstd")
    set_moment(folder / f"{number}.parquet", number)


def lay_part(part: str, number: int, content: Sequence[Row]) -> None:
    """Write one JSON file into a folder of the stream `parts`; each folder is a worker."""
    folder = ROOT / "sources" / "parts" / part
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": r[0], "at": str(r[2]), "amount": r[3]}) for r in content]
    if number == 1:
        lines.append('{"id": "none", "at": 3')
    (folder / f"{number}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    set_moment(folder / f"{number}.json", 2 * number + (part == "q"))


def set_moment(path: Path, number: int) -> None:
    """Set a file's modification time, by which sources order files, from its number."""
    moment = START.timestamp() + number
    os.utime(path, (moment, moment))


def run(command: str) -> Json:
    """Run a command with `--json`; returns its exit code and its output."""
    from capstan.cli import main

    places = ["--lake", LAKE, "--streams", str(ROOT / "streams.yaml"), "--json"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = main([*places, *shlex.split(command)])
    return {"code": code, "printed": json.loads(printed.getvalue() or "null")}


def approve(name: str) -> Json:
    """Publish a held run with an approval, as Airflow's job does."""
    from pyspark.sql import SparkSession

    from capstan.jobs import handlers
    from capstan.jobs.main import main
    from capstan.spark.session import build_session

    result = ROOT / "result.json"
    requested = {"run": name, "approved": True, "by": "Ada", "at": "2024-06-01T10:00:00+00:00",
             "reason": "looked at"}  # fmt: skip
    words = ["--request", json.dumps(requested), "--lake", LAKE, "--result", str(result),
             "--streams", str(ROOT / "streams.yaml")]  # fmt: skip
    # The job would stop the session of all tests.
    with mock.patch.object(SparkSession, "stop"), redirect_stdout(io.StringIO()):
        code = main(handlers.publish, words, lambda _: build_session())
    printed = json.loads(result.read_text("utf-8"))
    result.unlink()
    return {"code": code, "printed": printed}


UNTIL = "2024-05-01T12:00"
REPLAYS: dict[str, str] = {
    "copy": f"orders --into copies --workers a,b --until {UNTIL}",
    "more of it": "orders --into copies --since 2024-05-01T12:00 --until 2024-05-01T18:00",
    "partial": "orders --into partly --partial --until 2024-05-09",
    "append": f"orders --into log --mode append --until {UNTIL}",
    "merge": f"orders --into latest --transform latest --mode merge --keys place --until {UNTIL}",
    "direct": "orders --into direct --transform by_day --direct --until 2024-05-02",
    "function": f"orders --into large --transform large --peers 2 --until {UNTIL}",
    "what it lacks": f"orders --into outside --until {UNTIL}",
    "numbers": "batches --into batches",
    "known at": "history --into known --known-at 0 --until event=2024-05-01T06:00",
    "hourly": f"orders --pipeline hourly --until {UNTIL}",
    "managed": f"orders --pipeline managed --into managed --until {UNTIL} --peers 2",
    "parts": "parts --into parts",
    "imported": "shipped --into shipped",
    "clicks": "clicks --into clicks --transform clicks_by_hour --until 2024-05-01T03:00",
    "append more": f"orders --into log --mode append --since {UNTIL} --until 2024-05-01T15:00",
    "merge more": "orders --into latest --transform latest --mode merge --keys place "
    f"--since {UNTIL} --until 2024-05-01T18:00",
}
"""Options of replays that are made, and later repeated, by name."""
OUTSIDE = f"orders --into outside --as-of 0 --until {UNTIL}"
TAIL = "orders --into tail --follow tail"
VISITS = "orders --pipeline totals --sink visits --into visits --follow visits"
STEPS = "orders --pipeline totals --sink steps --into steps --follow steps"
AGAIN = "orders --into-stream again --peers 2"
SO_FAR = "orders --pipeline totals --sink running --into so_far --follow so_far"
APPROVED = f"orders --into approved --since 2024-05-01T04:00 --until {UNTIL}"
LAID_OVER = (
    "orders --into copies --workers a --as-of 0 --since 2024-05-01T06:00 --until 2024-05-01T08:00"
)


def make() -> Iterator[tuple[str, Json]]:
    """Make the lake at `ROOT`; yields the name and the result of each command."""
    remove()
    ROOT.mkdir(parents=True)
    declare(2)
    yield from fill_tapes()
    for name, words in REPLAYS.items():
        yield f"replay {name}", run(f"replay {words}")
    yield from _fill_ledgers()


def fill_tapes() -> Iterator[tuple[str, Json]]:
    lay("orders", 0, rows(range(50)))
    lay("clicks", 0, rows(range(40), HALF / 6))
    lay("batches", 0, rows(range(12)))
    lay("batches", 1, rows(range(12, 20)))
    lay("history", 0, rows(range(20)))
    lay_part("p", 0, rows(range(0, 20, 2)))
    lay_part("q", 0, rows(range(1, 20, 2)))
    for stream in ("orders", "clicks", "batches", "history", "parts"):
        yield f"capture {stream}", run(f"capture {stream}")
    yield "follow a copy", run(f"replay {TAIL}")
    yield "follow a pipeline", run("backfill running")
    for words in (VISITS, STEPS):
        yield f"follow {words}", run(f"replay {words} --peers 2")
    lay("orders", 1, [*rows(range(50, 70)), *LATE])
    lay("history", 1, [*rows(range(20, 30)), *LATE[:2]])
    lay_part("p", 1, rows(range(20, 30, 2)))
    for stream in ("orders", "history", "parts"):
        yield f"capture more {stream}", run(f"capture {stream}")
    yield "put back", run("late orders --put-back")
    declare(3)
    lay("clicks", 1, [*rows(range(40, 60), HALF / 6), *LATE[:2]])
    yield "refused", run("capture clicks")
    yield "rescale", run("capture clicks --rescale 3")
    lay("clicks", 2, rows(range(60, 80), HALF / 6))
    yield "capture rescaled", run("capture clicks")
    yield "close", run("close batches")
    yield "export", run(f"export batches {ROOT}/exported --format jsonl")
    yield "import", run(f"import shipped {ROOT}/exported --format jsonl")
    yield "recapture", run(f"replay {AGAIN}")
    for stream in ("orders", "clicks", "batches", "history", "parts", "again"):
        yield f"verify {stream}", run(f"verify {stream}")


def _fill_ledgers() -> Iterator[tuple[str, Json]]:
    yield "backfill", run("backfill by_day --chunk 1 --until 2024-05-02")
    yield "declared", run("backfill march --every '6 hours' --chunk 1")
    yield "hold", run(f"replay orders --into held --until {UNTIL} --hold")
    rejected = run(f"replay orders --into rejected --until {UNTIL} --hold")
    yield "hold another", rejected
    yield "reject", run(f"reject {run_of(rejected)} --reason 'the wrong month'")
    yield "a check fails", run(f"replay orders --into cheap --until {UNTIL}")
    undone = run(f"replay orders --into undone --until {UNTIL}")
    yield "replay for nothing", undone
    yield "roll back", run(f"rollback {run_of(undone)}")
    yield "lay over", run(f"replay {LAID_OVER} --adopt")
    yield "audit", run(f"audit {run_of(undone)}")
    against = f"--against {LAKE}/tables/copies --workers a,b --until {UNTIL}"
    yield "audit a table", run(f"audit orders {against}")
    yield "retire", run("retire clicks --before 2024-05-01T01:00")
    yield "maintain", run("maintain orders")
    yield "state", run("state totals")
    yield "outside", run(f"replay {OUTSIDE}")
    yield "follow a total", run(f"replay {SO_FAR} --peers 2")
    approved = run(f"replay {APPROVED} --hold")
    yield "hold for approval", approved
    yield "approve", approve(run_of(approved))


def carry_on() -> Iterator[tuple[str, Json]]:
    """Continue the lake; yields the name and the result of each command."""
    yield from look()
    yield from replay_again()
    yield from go_on()


def look() -> Iterator[tuple[str, Json]]:
    """List streams and runs; verify all streams."""
    for command in ("streams", "runs --limit 0", "staging", "late orders", "state totals"):
        yield command, run(command)
    for command in ("gaps by_day", "gaps march", "gaps running", "explain totals"):
        yield command, run(command)
    for stream in STREAMS:
        yield f"show {stream}", run(f"show {stream}")
        yield f"verify {stream}", run(f"verify {stream}")
    yield "verify deep", run("verify orders --deep --source")
    yield "verify retired", run("verify clicks --deep")


def replay_again() -> Iterator[tuple[str, Json]]:
    """Repeat the replays: most are unchanged, and print their certificates."""
    again = {**REPLAYS, "outside": OUTSIDE, "approved": APPROVED, "lay over": LAID_OVER}
    for name, words in again.items():
        yield f"replay {name}", run(f"replay {words}")
    yield "backfill", run("backfill by_day --until 2024-05-02")


def go_on() -> Iterator[tuple[str, Json]]:
    """Follow on, publish, roll back, capture more, audit, maintain."""
    yield "plan", run(f"plan {REPLAYS['copy']} --diff")
    tail = run(f"replay {TAIL}")
    yield "follow a copy", tail
    yield "follow a pipeline", run("backfill running")
    yield "rescale its state", run("state totals rescale 3 --into visits")
    yield "follow what was rescaled", run(f"replay {VISITS}")
    held = run(f"replay orders --into held --until {UNTIL} --hold")
    yield "hold again", held
    yield "publish", run(f"publish {run_of(held)}")
    for name in ("merge more", "append more"):
        done = run(f"replay {REPLAYS[name]}")
        yield f"roll back {name}", run(f"rollback {run_of(done)}")
    yield "roll back what was followed", run(f"rollback {run_of(tail)}")
    for name in ("more of it", "hourly", "function"):
        done = run(f"replay {REPLAYS[name]}")
        yield f"audit {name}", run(f"audit {run_of(done)}")
    lay("orders", 2, rows(range(70, 90)))
    lay("clicks", 3, rows(range(80, 90), HALF / 6))
    lay_part("q", 2, rows(range(21, 30, 2)))
    for stream in ("orders", "clicks", "parts", "batches"):
        yield f"capture {stream}", run(f"capture {stream}")
    yield "follow on", run("backfill running")
    yield "recapture", run(f"replay {AGAIN}")
    yield "replay over", run("replay orders --into copies --until 2024-05-01T18:00")
    yield "fill", run("backfill by_day")
    yield "retire", run("retire batches --before 1")
    for stream in ("orders", "parts"):
        yield f"maintain {stream}", run(f"maintain {stream}")
    for stream in STREAMS:
        yield f"verify {stream} again", run(f"verify {stream}")
    yield "follow a total", run(f"replay {SO_FAR}")
    yield "follow steps", run(f"replay {STEPS}")


STREAMS = ("orders", "clicks", "batches", "history", "parts", "again", "shipped")


def run_of(done: Json) -> str:
    """The name of the run that a replay printed."""
    printed = done["printed"]
    assert isinstance(printed, dict), done
    return str(printed["run"])


def pack(path: Path) -> None:
    """Write the files at `ROOT` to an archive, without those that Delta does not need."""
    # A checkpoint that a later one replaces; the commits before it are all there.
    replaced = {f"{ROOT.name}/{old.relative_to(ROOT)}"
                for log in ROOT.rglob("_delta_log")
                for old in sorted(log.glob("*.checkpoint.parquet"))[:-1]}  # fmt: skip

    def chosen(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # The others are Hadoop's checksums.
        hidden = entry.name in replaced or (
            entry.name.rpartition("/")[2].startswith(".") and entry.name.endswith(".crc")
        )
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if hidden else entry

    with tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(ROOT, ROOT.name, filter=chosen)


def unpack(path: Path) -> None:
    """Replace the files at `ROOT` by those of an archive, with their modification times."""
    shutil.rmtree(ROOT, ignore_errors=True)
    with tarfile.open(path) as archive:
        archive.extractall(ROOT.parent, filter="tar")


def remove() -> None:
    """Remove the files at `ROOT`."""
    shutil.rmtree(ROOT, ignore_errors=True)
