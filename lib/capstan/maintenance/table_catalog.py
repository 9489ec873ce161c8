"""The tables of a lake that are kept up, and their files as compaction sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from capstan.maintenance.compaction_policy import INDEX, File, Sizes
from capstan.storage import delta
from capstan.storage.lake import LEDGERS, Lake, is_table
from capstan.storage.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Kept:
    """A table that grows by appends.

    Attributes:
        name: What it is called: `records`, `ledger runs`, `aside places`.
        path: Where it is.
        key: The column by which its rows came in order, an integer or a moment.
        order: The columns by which a file's rows are sorted.
        sizes: When it is worth to be written anew.
    """

    name: str
    path: str
    key: str
    order: tuple[str, ...]
    sizes: Sizes = INDEX


def index_tables(tape: Tape) -> list[Kept]:
    """The tables of a tape beside its records; only captures have a feed."""
    paths = tape.paths
    found = [
        Kept("events", paths.events, "commit", ("commit", "worker", "seq")),
        Kept("late", paths.late, "batch", ("batch", "pos")),
        Kept("workers", paths.workers, "opened_commit", ("opened_commit", "worker")),
        Kept("feed", paths.feed, "batch", ("batch", "part")),
    ]
    return [table for table in found if is_table(table.path)]


def ledger_tables(lake: Lake) -> list[Kept]:
    """The ledgers of a lake that are there."""
    found = [Kept(f"ledger {name}", lake.ledger(name), "at", ("at",)) for name in LEDGERS]
    return [table for table in found if is_table(table.path)]


def aside_tables(lake: Lake) -> list[Kept]:
    """The tables of rows that runs of pipelines have put aside, which grow with each run."""
    return [
        Kept(f"aside {name}", lake.side_outputs(name), "at", ("at", "replay_worker", "time"))
        for name in lake.side_output_tables()
    ]


def files_of(path: str, key: str, *, by_worker: bool = False) -> list[File] | None:
    """The files of a table, from its log alone; None where a file lacks the bounds of its rows.

    Args:
        path: The table.
        key: The column by which its rows came in order.
        by_worker: Whether the workers of a file's rows count.
    """
    found, partitions = [], dict[tuple[object, ...], int]()
    for row in pa.table(delta.open_table(path).get_add_actions(flatten=True)).to_pylist():
        low, high = _number(row.get(f"min.{key}")), _number(row.get(f"max.{key}"))
        count = row.get("num_records")
        workers = (row.get("min.worker"), row.get("max.worker")) if by_worker else (0, 0)
        if low is None or high is None or count is None or None in workers:
            if count == 0:
                continue
            return None
        pair = (int(workers[0]), int(workers[1])) if by_worker else None
        place = tuple(value for name, value in row.items() if name.startswith("partition."))
        part = partitions.setdefault(place, len(partitions))
        size = int(row["size_bytes"])
        found.append(File(row["path"], size, int(count), low, high, pair, part))
    return found


def _number(bound: object) -> int | None:
    if isinstance(bound, datetime):
        return int(bound.timestamp() * 1000)
    return bound if isinstance(bound, int) else None
