"""The tables that grow by a small file with each batch or run, and their files."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.storage.compaction.policy import INDEX, Sizes, TapeFile
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import SCHEMAS
from capstan.storage.tape.bounds import interval
from capstan.storage.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class GrowingTable:
    """A table that grows by appends."""

    name: str
    path: str
    key: str  # the column in whose order rows arrive, an integer or a timestamp
    order: tuple[str, ...]  # of the rows of a file
    sizes: Sizes = INDEX
    by_key: bool = False  # whether it is asked for few rows, and its files are in small parts
    payload: bool = False  # whether it has columns of the stream's, of any type that Spark knows


def index_tables(tape: Tape) -> list[GrowingTable]:
    """The tables of a tape except its records; only captured tapes have a feed."""
    paths = tape.paths
    tables = [
        GrowingTable("events", paths.events, "commit", ("commit", "worker", "seq")),
        GrowingTable("late", paths.late, "batch", ("batch", "pos"), payload=True),
        GrowingTable("workers", paths.workers, "opened_commit", ("opened_commit", "worker")),
        GrowingTable("settled", paths.settled, "batch", ("batch", "pos"), payload=True),
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
