"""Compaction: many small files become few.

No row changes, and whoever follows a table sees nothing new: Delta is told so (`dataChange` is
false). An append at the same time is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from capstan.errors import RangeLockedError
from capstan.instrumentation import emit
from capstan.maintenance.compaction_policy import File, runs_of, worth_writing
from capstan.maintenance.table_catalog import Kept, files_of
from capstan.storage.file_rewrite import exchange, rows_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 12
"""How often a table is looked at again when another writer has taken files of it."""


@dataclass(slots=True)
class Compacted:
    """What compaction did to a table.

    Attributes:
        table: What it is called.
        files_before: Files that it had.
        files: Files that it has.
        bytes: Their size.
        rewritten: Bytes that were written anew.
        commits: How many commits that took.
        damaged: Batches, first and last, whose records are not those that were captured.
    """

    table: str
    files_before: int | None = None
    files: int = 0
    bytes: int = 0
    rewritten: int = 0
    commits: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def see(self, files: Sequence[File]) -> None:
        """Take note of the files that there are now."""
        self.files, self.bytes = len(files), sum(file.bytes for file in files)
        if self.files_before is None:
            self.files_before = self.files


def compact_index(spark: SparkSession, table: Kept, *, ended: bool = False) -> Compacted:
    """Compact a table whose rows need no other order than that in which they came.

    Args:
        spark: The session.
        table: The table.
        ended: Whether nothing will come any more, so that nothing is worth waiting for.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when other writers took its files again and again.
    """
    done = Compacted(table.name)

    def turn() -> bool | None:
        files = files_of(table.path, table.key)
        if files is None:
            return None
        done.see(files)
        groups = [
            group
            for part in sorted({file.partition for file in files})
            for group in worth_writing(
                runs_of(file for file in files if file.partition == part),
                table.sizes,
                ended=ended,
            )
        ]
        for group in groups:
            rows = rows_of_files(spark, table.path, [file.path for file in group])
            parts = max(1, -(-sum(file.bytes for file in group) // table.sizes.file))
            laid = rows.repartitionByRange(parts, *table.order)
            if not put(spark, table.path, group, laid.sortWithinPartitions(*table.order), done):
                return False
        return True if groups else None

    until_settled(table.path, turn)
    return done


def until_settled(path: str, turn: Callable[[], bool | None]) -> None:
    """Take turns at a table until one finds nothing more to do.

    Args:
        path: The table.
        turn: Does what there is to do; None when there was nothing, False when another writer has
            taken files of the table meanwhile.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when others took files in each of many turns.
    """
    went = None
    for _ in range(TRIES):
        went = turn()
        if went is None:
            return
    if went is False:
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"other writers took files of {path} {TRIES} times in a row",
            "run the same command again: it goes on where this one stopped",
            path=path,
        )


def put(
    spark: SparkSession,
    path: str,
    group: Sequence[File],
    rows: DataFrame,
    done: Compacted,
    check: Callable[[], None] | None = None,
) -> bool:
    """Put rows in the place of the files of a group; False where others have taken some of them.

    Args:
        spark: The session.
        path: The table.
        group: The files.
        rows: Their rows, as they should lie.
        done: Takes note of it.
        check: Called when all is written and nothing is committed; it may raise.
    """

    def written() -> None:
        if check is not None:
            check()
        emit("maintain.written", table=done.table)

    gone = {file.path: file.rows for file in group}
    note = {"maintain": "compact"}
    found = exchange(spark, path, gone, rows, note=note, before_commit=written)
    if found is None:
        return False
    done.commits += 1
    done.rewritten += sum(file.bytes for file in group)
    emit("maintain.compacted", table=done.table, files=found.files, of=len(group))
    return True
