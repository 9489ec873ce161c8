"""Cost of a merge by sequence compared with a bare MERGE of Delta, of the same changes.

The earlier half of the bids is in the table; the later half is merged into it by auction. The bare
one compares sequences with the row in the table, and remembers neither deleted keys nor what it
replaced; it could not be taken back, nor be repeated in another order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

from capstan.core.config import Mode
from capstan.errors import SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.tape.tape import newest_cut, open_tape, read_records
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import STREAM, Bench, drop, nothing_declared
from tests.bench.measures import Line, compared, interleave
from tests.bench.replay import lake_with_ledgers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MERGE, BARE = "merge by sequence", "bare Delta MERGE"
GOAL = 1.8
KEY, SEQUENCE = "auction", ("dateTime", "bidder", "price")
MERGING: dict[str, Any] = {
    "mode": Mode.MERGE,
    "keys": (KEY,),
    "sequence_by": SEQUENCE,
    "delete_when": "price % 10 = 0",
}


def merges(bench: Bench) -> list[Line]:
    """The result `merge by sequence`."""
    actual: dict[tuple[str, int], int] = {}
    samples = interleave(
        {
            MERGE: lambda rows, _: _merged(bench, rows, actual),
            BARE: lambda rows, _: _merged_bare(bench, rows, actual),
        },
        bench.options.sizes,
        bench.options.rounds,
        bench.tell,
    )
    for rows in bench.options.sizes:
        if actual[MERGE, rows] != actual[BARE, rows]:
            raise SystemFailureError(
                "CAP-BENCH",
                f"of {rows} bids, {actual[MERGE, rows]} and {actual[BARE, rows]} auctions are left",
                "the sides of the benchmark would not do the same work; report this",
            )
    return [compared(samples, MERGE, BARE, GOAL)]


def _merged(bench: Bench, rows: int, found: dict[tuple[str, int], int]) -> Cost:
    declared, lake = nothing_declared(bench.folder), lake_with_ledgers(bench, "merge")
    name = f"{STREAM}_{rows}"
    middle = _middle(bench, rows)

    def merge(since: str | None = None, until: str | None = None) -> None:
        request = Request(name, "table", since=since, until=until, **MERGING)
        replay(bench.spark, lake, declared, request)

    merge(until=middle)
    bench.tidy()
    cost = bench.clock.measure(lambda: merge(since=middle))
    found[MERGE, rows] = OpenedTable(lake.table("table")).count()
    drop(Path(lake.root))
    return cost


def _merged_bare(bench: Bench, rows: int, found: dict[tuple[str, int], int]) -> Cost:
    lake = bench.lake_of_tapes("bare-merge")
    path, middle = f"{lake.root}/plain", _middle(bench, rows)
    records = _records(bench, rows)
    earlier = _last(records.where(F.col("time.event") < middle))
    earlier.where("NOT gone").drop("gone").write.format("delta").partitionBy("_worker").save(path)

    def merge() -> None:
        same = f"t.{KEY} = s.{KEY}"
        newer = f"struct({_of('s')}) > struct({_of('t')})"
        later = _last(records.where(F.col("time.event") >= middle))
        columns = {name: f"s.{name}" for name in later.columns if name != "gone"}
        job = DeltaTable.forPath(bench.spark, path).alias("t").merge(later.alias("s"), same)
        job = job.whenMatchedDelete(f"{newer} AND s.gone")
        job = job.whenMatchedUpdate(newer, columns)  # type: ignore[arg-type]
        job.whenNotMatchedInsert("NOT s.gone", columns).execute()  # type: ignore[arg-type]

    bench.tidy()
    cost = bench.clock.measure(merge)
    found[BARE, rows] = OpenedTable(path).count()
    drop(Path(lake.root))
    return cost


def _of(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in SEQUENCE)


def _last(records: DataFrame) -> DataFrame:
    """The last change of each key, as a copy has its columns."""
    order = [F.col(name).desc() for name in SEQUENCE]
    rows = records.select(
        F.col("worker").alias("_worker"), F.col("time").alias("_time"), F.col("data.*")
    )
    gone = F.expr(MERGING["delete_when"])
    numbered = rows.withColumns(
        {"n": F.row_number().over(Window.partitionBy(KEY).orderBy(*order)), "gone": gone}
    )
    return numbered.where("n = 1").drop("n")


def _records(bench: Bench, rows: int) -> DataFrame:
    tape = open_tape(bench.lake_of_tapes("records"), f"{STREAM}_{rows}")
    return read_records(bench.spark, tape, newest_cut(tape))


def _middle(bench: Bench, rows: int) -> str:
    """The minute in the middle of the times of the bids."""
    at = F.unix_seconds("time.event")
    [[first, last]] = _records(bench, rows).agg(F.min(at), F.max(at)).collect()
    minutes = (first + last) // 2 // 60
    [[text]] = bench.spark.sql(
        f"SELECT date_format(timestamp_seconds({minutes} * 60), \"yyyy-MM-dd'T'HH:mm:ss'Z'\")"
    ).collect()
    return str(text)
