"""The tables of a lake to maintain, and their files for compaction."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from capstan.maintenance.compaction_policy import INDEX, Sizes, TapeFile
from capstan.storage.delta import delta
from capstan.storage.lake import LEDGERS, Lake, is_table
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
    tables = [GrowingTable(f"ledger {name}", lake.ledger(name), "at", ("at",)) for name in LEDGERS]
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
    for row in pa.table(delta.open_table(path).get_add_actions(flatten=True)).to_pylist():
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
