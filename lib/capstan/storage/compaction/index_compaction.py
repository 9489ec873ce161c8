"""Compaction of the tables that grow by a small file with each batch or run.

Maintenance does it whenever it runs. A capture does it for its tape after every `EVERY` commits, so
that a micro-batch costs the same however many there were, and whether or not anybody maintains the
lake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from sys import maxsize

from capstan.errors import CapstanError
from capstan.storage.compaction.growing_tables import GrowingTable, files_of, index_tables
from capstan.storage.compaction.merging import merge_files
from capstan.storage.compaction.outcome import TableResult, repeat_until_done
from capstan.storage.compaction.policy import OF_CAPTURES, TapeFile, worth_writing_apart
from capstan.storage.delta import arrow_writer
from capstan.storage.delta.arrow_writer import FILES
from capstan.storage.tape.index_totals import EVERY, store_totals
from capstan.storage.tape.tape import Tape
from capstan.telemetry.instrumentation import emit

Rewrite = Callable[[GrowingTable, Sequence[TapeFile], TableResult], bool]
"""Replaces the files of a group; False if others have replaced some of them."""

# A log names each removed file for that long, and whoever opens the table reads these names too.
# The newest version of an index has all rows of the earlier ones, so these are of little use.
_REMOVED_FOR = "interval 1 days"
# The groups of a table that a capture rewrites at once: it has other work, and a lake that nobody
# has maintained may have thousands.
_AT_ONCE = 8


def keep_short(tape: Tape, commit: int, least: int = EVERY) -> None:
    """Store the totals of a tape at its newest commit, and compact its index.

    It does nothing with fewer than `least` index files since the last totals. What cannot be
    compacted is left to maintenance, which says why: the micro-batch stands.
    """
    # Totals first: afterwards files with newer events are read in full.
    if not store_totals(tape, commit, least):
        return
    for table in index_tables(tape):
        # What has columns of the stream is left to maintenance, which has Spark.
        if table.payload:
            continue
        try:
            compact_index(replace(table, sizes=OF_CAPTURES), most=_AT_ONCE)
            arrow_writer.add_property(table.path, FILES, _REMOVED_FOR)
        except CapstanError as error:
            emit("capture.left", table=table.name, error=str(error))


def compact_index(
    table: GrowingTable, rewrite: Rewrite = merge_files, *, ended: bool = False, most: int = maxsize
) -> TableResult:
    """Compact a table in the order of its rows, at most so many groups of its files.

    When `ended`, files wait for no more rows.
    """
    result, left = TableResult(table.name), most

    def step() -> bool | None:
        nonlocal left
        files = files_of(table.path, table.key)
        if files is None:
            return None
        result.observe(files)
        groups = worth_writing_apart(files, table.sizes, ended=ended)[:left]
        left -= len(groups)
        if not all(rewrite(table, group, result) for group in groups):
            return False
        return True if groups else None

    repeat_until_done(table.path, step)
    return result
