"""What a project of commit 39c5aa1 declares beyond the lake of format 2: see `tests/formats`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import yaml

from tests.support import kept_lake
from tests.support.kept_lake import HALF, LATE, ROOT, START, rows, run, run_of
from tests.support.lake_figures import Json

PIPELINES = ("paid", "paid_by_place", "large_orders", "settled", "placed", "per_shop")
"""The pipelines of `tests/support/kept_pipelines.py`."""

DECLARED = """
streams:
  payments:
    source: {format: parquet, path: ROOT/sources/payments, options: {maxFilesPerTrigger: 1}}
    workers: {by: key, columns: [id], count: 2}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
  changes:
    source:
      format: text
      path: ROOT/sources/changes
      schema: value STRING
      options: {maxFilesPerTrigger: 1}
      select:
        - "from_json(value, 'id BIGINT, at BIGINT, version BIGINT, op STRING, note STRING').*"
      where: op != 'test'
    workers: {by: key, columns: [id], count: 2}
    time: {domain: event, column: at, unit: s, every: 1 hour, lateness: 1 hour}
transforms:
  by_customer:
    sql: "SELECT id AS customer, version, op, upper(note) AS note FROM records"
  broken:
    sql: "SELECT id, CAST(place AS INT) AS place FROM records"
pipelines: {}
targets:
  moved: {path: ROOT/moved/MOVED}
  clustered:
    create: {cluster_by: [place], properties: {delta.enableChangeDataFeed: "true"}}
replays:
  settled:
    streams: {orders: orders, payments: payments}
    pipeline: settled
    sink: joined
    target: settled
    follow: declared
  customers:
    stream: changes
    transform: by_customer
    target: customers
    mode: merge
    keys: [customer]
    sequence_by: [version]
    delete_when: op = 'd'
    history: true
    since: 2024-05-01
    until: 2024-05-02
  of_places:
    streams: {orders: orders, payments: payments}
    workers_of: {orders: [a, c]}
    pipeline: paid_by_place
    target: of_places
    since: 2024-05-01
    until: 2024-05-02
    schedule: "@hourly"
"""


def declare(moved: str, folder: Path = ROOT) -> None:
    """Write `streams.yaml` with these declarations and those of format 2.

    Args:
        moved: The folder in which the target `moved` is.
        folder: Where to write.
    """
    kept_lake.declare(3, folder)
    path = folder / "streams.yaml"
    declared = yaml.safe_load(path.read_text("utf-8"))
    more = yaml.safe_load(DECLARED.replace("ROOT", str(ROOT)).replace("MOVED", moved))
    for section, entries in more.items():
        declared[section].update(entries)
    declared["pipelines"].update(
        {name: f"tests.support.kept_pipelines:{name}" for name in PIPELINES}
    )
    path.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")


UNTIL = "--until 2024-05-01T08:00"
BOTH = "orders=orders,payments=payments"
LATER = "--since 2024-05-01T08:00 --until 2024-05-01T10:00"
MORNING = "--until 2024-05-01T12:00"
AFTERNOON = "--since 2024-05-01T12:00 --until 2024-05-02"
RULE = (
    "--transform by_customer --mode merge --keys customer --sequence-by version"
    " --delete-when \"op = 'd'\""
)
REPLAYS: dict[str, str] = {
    "clustered": f"orders --into clustered {UNTIL}",
    "moved": f"orders --into moved --workers a,b {UNTIL}",
    "direct": f"orders --into direct --workers c --direct {UNTIL}",
    "join": f"{BOTH} --pipeline paid {UNTIL}",
    "workers of": f"{BOTH} --pipeline paid_by_place --into paid_by_place"
    f" --workers-of orders=a,b {UNTIL}",
    "large": f"orders --pipeline large_orders {UNTIL}",
    "lookup": f"orders --pipeline placed --lookup shops=0 {UNTIL}",
    "newest lookup": "orders --pipeline placed --into placed_newly --until 2024-05-01T04:00",
    "later changes": f"changes --into latest {RULE} {AFTERNOON}",
    "earlier changes": f"changes --into latest {RULE} {MORNING}",
    "history": f"changes --into versions {RULE} --history {MORNING}",
}
"""Options of replays that are made, and later repeated, by name."""
FOLLOWED: dict[str, str] = {
    "met": f"{BOTH} --pipeline settled --sink met --into met --follow met",
    **{
        sink: f"orders --pipeline settled --sink {sink} --into {sink} --follow {sink}"
        for sink in ("first", "top", "counted", "recent")
    },
    "per shop": "orders --pipeline per_shop --follow per_shop",
    "moved": "orders --into followed --workers a --follow moved",
}
"""Options of replays that continue where the last run of their name ended."""
BROKEN = f"orders --into broken --transform broken --mode append {UNTIL}"
SETTLED = "backfill settled --every '4 hours'"
PLACES = "backfill of_places --until 2024-05-01T08:00"
CUSTOMERS = "backfill customers --every '12 hours' --order newest"
KILLED: dict[str, tuple[str, str]] = {
    "staged": ("replay.audit", f"replay orders --into staged {UNTIL}"),
    "shown": ("replay.audit", f"replay orders --into shown --direct {UNTIL}"),
    "merged": ("replay.coverage", f"replay changes --into merged {RULE} {MORNING}"),
}
"""Points at which a command into a table of this name is killed."""
STREAMS = ("orders", "payments", "changes")


def lay_payments(number: int, numbers: range) -> None:
    """Write one file of payments, each half an hour after its order."""
    paid = [(n, place, at + HALF, amount, price)
            for n, place, at, amount, price in rows(numbers) if at]  # fmt: skip
    kept_lake.lay("payments", number, paid)


def lay_changes(number: int, numbers: range) -> None:
    """Write one file of changes to five customers: versions out of order, some deletions."""
    folder = ROOT / "sources" / "changes"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.txt"
    path.write_text("".join(f"{json.dumps(_change(n))}\n" for n in numbers), encoding="utf-8")
    kept_lake.set_moment(path, number)


def _change(n: int) -> Json:
    at = int((START + n * timedelta(hours=1)).timestamp())
    op = "test" if n % 13 == 7 else "d" if n % 8 == 5 else "u"
    return {"id": n * n % 5, "at": at, "version": n ^ 2, "op": op, "note": f"note {n}"}


def lay_table(name: str, columns: dict[str, Sequence[object]]) -> None:
    """Write the next version of a lookup table."""
    place = str(ROOT / "lake" / "tables" / name)
    deltalake.write_deltalake(place, pa.table(columns), mode="overwrite")


def make() -> Iterator[tuple[str, Json]]:
    """Make the lake at `ROOT`; yields the name and the result of each command."""
    kept_lake.remove()
    ROOT.mkdir(parents=True)
    declare("first")
    yield from _fill_tapes()
    lay_table("shops", {"code": ["a", "b"], "name": ["Ash", "Birch"], "region": [1, 2]})
    lay_table("regions", {"number": [1, 2], "title": ["north", "south"]})
    lay_table("shops", {"code": ["a", "c"], "name": ["Ash", "Cedar"], "region": [2, 1]})
    for name, words in REPLAYS.items():
        yield f"replay {name}", run(f"replay {words}")
    for name, words in FOLLOWED.items():
        yield f"follow {name}", run(f"replay {words}")
    yield from _fill_ledgers()


def _fill_tapes() -> Iterator[tuple[str, Json]]:
    kept_lake.lay("orders", 0, rows(range(24)))
    lay_payments(0, range(20))
    lay_changes(0, range(32))
    for stream in STREAMS:
        yield f"capture {stream}", run(f"capture {stream}")
    yield "follow declared", run(SETTLED)
    kept_lake.lay("orders", 1, [*rows(range(24, 32)), *LATE])
    lay_payments(1, range(20, 30))
    for stream in ("orders", "payments"):
        yield f"capture more {stream}", run(f"capture {stream}")
    yield "put back", run("late orders --put-back")
    for stream in STREAMS:
        yield f"verify {stream}", run(f"verify {stream}")


def _fill_ledgers() -> Iterator[tuple[str, Json]]:
    shutil.move(ROOT / "moved" / "first", ROOT / "moved" / "second")
    declare("second")
    yield "into what was moved", run(f"replay orders --into moved {LATER}")
    yield "backfill", run(f"{PLACES} --chunk 4")
    yield "merge declared", run(CUSTOMERS)
    undone = run(f"replay {BOTH} --pipeline settled --sink joined --into undone --follow undone")
    yield "follow for nothing", undone
    yield "roll back", run(f"rollback {run_of(undone)}")
    merged = run(f"replay changes --into versions {RULE} --history {AFTERNOON}")
    yield "merge for nothing", merged
    yield "roll back a merge", run(f"rollback {run_of(merged)}")
    yield "hold", run(f"replay orders --into held {UNTIL} --hold")
    approved = run(f"replay orders --into clustered {LATER} --hold")
    yield "hold for approval", approved
    yield "approve", kept_lake.approve(run_of(approved))
    yield "a check fails", run(f"replay orders --into cheap {UNTIL}")
    yield "it breaks", run(f"replay {BROKEN}")
    yield "maintain", run("maintain orders")


def carry_on() -> Iterator[tuple[str, Json]]:
    """Continue the lake; yields the name and the result of each command."""
    yield from look()
    yield from replay_again()
    yield from go_on()


def look() -> Iterator[tuple[str, Json]]:
    """List streams and runs; verify all streams."""
    for command in ("streams", "runs --limit 0", "late orders", "late changes"):
        yield command, run(command)
    # The key `staging` of figures is not compared.
    yield "list staged", run("staging")
    for name in ("settled", "of_places", "customers --every '12 hours'"):
        yield f"gaps {name}", run(f"gaps {name}")
    for name in ("settled", "per_shop"):
        yield f"state {name}", run(f"state {name}")
        yield f"explain {name}", run(f"explain {name}")
    for stream in STREAMS:
        yield f"show {stream}", run(f"show {stream}")
        yield f"verify {stream}", run(f"verify {stream}")
        yield f"verify {stream} deep", run(f"verify {stream} --deep --source")


def replay_again() -> Iterator[tuple[str, Json]]:
    """Plan and repeat the replays: most are unchanged, and print their certificates."""
    for name, words in {**REPLAYS, **FOLLOWED}.items():
        yield f"plan {name}", run(f"plan {words}")
    for name, words in REPLAYS.items():
        yield f"replay {name}", run(f"replay {words}")
    for command in (SETTLED, PLACES, CUSTOMERS):
        yield f"{command} again", run(command)
    yield "it breaks again", run(f"replay {BROKEN}")


def go_on() -> Iterator[tuple[str, Json]]:
    """Publish, follow on, roll back, capture more, audit, maintain."""
    held = run(f"replay orders --into held {UNTIL} --hold")
    yield "hold again", held
    yield "publish", run(f"publish {run_of(held)}")
    for name in ("clustered", "moved", "join", "workers of", "newest lookup", "history"):
        yield f"audit {name}", run(f"audit {run_of(run(f'replay {REPLAYS[name]}'))}")
    for name in ("earlier changes", "clustered", "workers of"):
        yield f"roll back {name}", run(f"rollback {run_of(run(f'replay {REPLAYS[name]}'))}")
    yield "replay what was rolled back", run(f"replay {REPLAYS['earlier changes']}")
    kept_lake.lay("orders", 2, rows(range(32, 44)))
    lay_payments(2, range(30, 44))
    lay_changes(1, range(32, 40))
    for stream in STREAMS:
        yield f"capture {stream}", run(f"capture {stream}")
    for name, words in FOLLOWED.items():
        done = run(f"replay {words}")
        yield f"follow {name}", done
    yield "roll back what was followed", run(f"rollback {run_of(done)}")
    yield "plan what changed", run("plan orders --into clustered --until 2024-05-01T14:00 --diff")
    yield "replay over", run("replay orders --into clustered --until 2024-05-01T14:00")
    yield "more changes", run(f"replay changes --into versions {RULE} --history {AFTERNOON}")
    for name in ("settled --every '4 hours'", "of_places --stale", "of_places"):
        yield f"backfill {name}", run(f"backfill {name}")
    for name, (_, command) in KILLED.items():
        yield f"unlock {name}", run(f"unlock {_run_into(name)}")
        yield f"repeat {name}", run(command)
    yield "rescale state", run("state settled rescale 2 --into recent")
    yield "retire", run("retire payments --before 2024-05-01T02:00")
    yield "maintain", run("maintain --all")
    for stream in STREAMS:
        yield f"verify {stream} again", run(f"verify {stream}")
    yield "list runs", run("runs --limit 0")


def _run_into(target: str) -> str:
    """The name of the newest run into a table."""
    printed = run("runs --limit 0")["printed"]
    assert isinstance(printed, dict), printed
    return next(str(one["run"]) for one in printed["runs"]
                if str(one["target"]).rpartition("/")[2] == target)  # fmt: skip


BRIEFLY = ("streams", "runs --limit 0", *(f"verify {stream}" for stream in STREAMS),
           "audit clustered", "roll back clustered")  # fmt: skip
"""Names of the commands that take little time."""


def carry_on_briefly() -> Iterator[tuple[str, Json]]:
    """List, verify, audit a run and roll it back; yields the same as `carry_on` for `BRIEFLY`."""
    *listed, audited, undone = BRIEFLY
    for command in listed:
        yield command, run(command)
    name = run_of(run(f"replay {REPLAYS['clustered']}"))
    yield audited, run(f"audit {name}")
    yield undone, run(f"rollback {name}")
