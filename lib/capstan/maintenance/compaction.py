"""Compaction: rewrites many small files as few large ones.

No row changes, so streaming readers of a table see nothing new: its commits have `dataChange`
false. Concurrent appends do not conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from capstan.errors import RangeLockedError
from capstan.maintenance.compaction_policy import INDEX, Sizes, TapeFile, runs_of, worth_writing
from capstan.spark.own_session import copy_of
from capstan.storage.delta import delta
from capstan.storage.delta.data_files import read_files
from capstan.storage.delta.file_rewrite import exchange
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import SCHEMAS
from capstan.storage.tape.bounds import interval
from capstan.storage.tape.tape import Tape
from capstan.telemetry.instrumentation import emit

TRIES = 12
"""How often to retry when another writer has replaced files of a table."""


@dataclass(slots=True)
class TableResult:
    """The result of maintaining a table."""

    table: str
    files_before: int = 0
    files: int = 0
    bytes: int = 0
    rewritten: int = 0
    vacuumed: int = 0  # deleted files, which no retained version uses
    checkpoint: bool = False
    # Ranges of batches whose records differ from the index; they were left unchanged.
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def observe(self, files: Sequence[TapeFile]) -> None:
        """Record the present files of the table."""
        self.files, self.bytes = len(files), sum(file.bytes for file in files)
        self.files_before = self.files_before or self.files


@dataclass(frozen=True, slots=True)
class GrowingTable:
    """A table that grows by appends."""

    name: str
    path: str
    key: str  # the column in whose order rows arrive, an integer or a timestamp
    order: tuple[str, ...]  # of the rows of a file
    sizes: Sizes = INDEX
    by_key: bool = False  # whether it is asked for few rows, and its files are in small parts


PART_ROWS = 4096
"""The rows of a part of a file that can be skipped, by its bounds."""


def index_tables(tape: Tape) -> list[GrowingTable]:
    """The tables of a tape except its records; only captured tapes have a feed."""
    paths = tape.paths
    tables = [
        GrowingTable("events", paths.events, "commit", ("commit", "worker", "seq")),
        GrowingTable("late", paths.late, "batch", ("batch", "pos")),
        GrowingTable("workers", paths.workers, "opened_commit", ("opened_commit", "worker")),
        GrowingTable("feed", paths.feed, "batch", ("batch", "part")),
    ]
    return [table for table in tables if is_table(table.path)]


def ledger_tables(lake: Lake) -> list[GrowingTable]:
    """The existing ledgers of a lake."""
    # Most questions are about one run, or about the runs into one table, whose names begin alike.
    tables = [
        GrowingTable(
            f"ledger {name}", lake.ledger(name), "at",
            ("run", "at") if "run" in schema.names else ("at",), by_key=True,
        )
        for name, schema in SCHEMAS.items()
    ]  # fmt: skip
    return [table for table in tables if is_table(table.path)]


def aside_tables(lake: Lake) -> list[GrowingTable]:
    """The side-output tables of pipelines, which grow with each run."""
    return [
        GrowingTable(
            f"aside {name}", lake.side_outputs(name), "at", ("at", "replay_worker", "time")
        )
        for name in lake.side_output_tables()
    ]


def files_of(path: str, key: str, *, by_worker: bool = False) -> list[TapeFile] | None:
    """The files of a table, from its log alone; None if a file has no bounds of `key`."""
    files, partitions = [], dict[tuple[object, ...], int]()
    for row in delta.open_table(path).files().to_pylist():
        low, end = interval(row, key)
        count = row.get("num_records")
        workers = (row.get("min.worker"), row.get("max.worker")) if by_worker else (0, 0)
        if low is None or end is None or count is None or None in workers:
            if count == 0:
                continue
            return None
        pair = (int(workers[0]), int(workers[1])) if by_worker else None
        values = tuple(value for name, value in row.items() if name.startswith("partition."))
        partition = partitions.setdefault(values, len(partitions))
        size = int(row["size_bytes"])
        files.append(TapeFile(row["path"], size, int(count), low, end - 1, pair, partition))
    return files


def compact_index(spark: SparkSession, table: GrowingTable, *, ended: bool = False) -> TableResult:
    """Compact a table in the order of its rows; when `ended`, files wait for no more rows."""
    result = TableResult(table.name)
    if table.by_key:
        spark = copy_of(spark, {"parquet.block.row.count.limit": str(PART_ROWS)})

    def step() -> bool | None:
        files = files_of(table.path, table.key)
        if files is None:
            return None
        result.observe(files)
        groups = [
            group
            for part in sorted({file.partition for file in files})
            for group in worth_writing(
                runs_of(file for file in files if file.partition == part), table.sizes, ended=ended
            )
        ]
        for group in groups:
            rows = read_files(spark, table.path, [file.path for file in group])
            parts = max(1, -(-sum(file.bytes for file in group) // table.sizes.file))
            ranged = rows.repartitionByRange(parts, *table.order)
            sorted_rows = ranged.sortWithinPartitions(*table.order)
            if not replace_files(spark, table.path, group, sorted_rows, result):
                return False
        return True if groups else None

    repeat_until_done(table.path, step)
    return result


def repeat_until_done(path: str, step: Callable[[], bool | None]) -> None:
    """Repeat a step until it returns None, for nothing to do.

    False means that another writer has replaced files of the table meanwhile.
    """
    done = None
    for _ in range(TRIES):
        done = step()
        if done is None:
            return
    if done is False:
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"other writers replaced files of {path} {TRIES} times in a row",
            "run the same command again: it resumes where this one stopped",
            path=path,
        )


def replace_files(
    spark: SparkSession,
    path: str,
    group: Sequence[TapeFile],
    rows: DataFrame,
    result: TableResult,
    check: Callable[[], None] | None = None,
) -> bool:
    """Replace the files of a group; False if others have replaced some of them.

    `check` is called after all is written and before the commit; it may raise.
    """

    def before_commit() -> None:
        if check is not None:
            check()
        emit("maintain.written", table=result.table)

    removed = {file.path: file.rows for file in group}
    note = {"maintain": "compact"}
    commit = exchange(spark, path, removed, rows, note=note, before_commit=before_commit)
    if commit is None:
        return False
    result.rewritten += sum(file.bytes for file in group)
    emit("maintain.compacted", table=result.table, files=commit.files, of=len(group))
    return True
