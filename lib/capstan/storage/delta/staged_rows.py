"""Rows that are written into a table and not committed yet, listed in a Delta table of their own.

No reader of the table sees them. The list names files in the table's folder, so it can be loaded as
any Delta table, and the commit that adds the files writes no row. Its paths are relative where both
lie in the same place: then they move together.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame

from capstan.storage.delta import delta
from capstan.storage.delta.commits import retrying
from capstan.storage.delta.data_files import MAX_DIRECT, read_files
from capstan.storage.delta.idempotent_write import write_files
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import delete_file, is_table, sizes_of, write_whole
from capstan.telemetry.instrumentation import emit

# Text that a path has as it is, and that means the same in each type of a column.
_PLAIN = re.compile(r"_?[A-Za-z][A-Za-z0-9_-]*|0|[1-9][0-9]{0,8}")


def can_stage(path: str, *, replaces: bool) -> bool:
    """Whether rows can be written into a table ahead of the commit that adds them.

    Not where the commit itself has a part in the rows: it names mapped columns and numbers identity
    columns, and for the change feed it writes again what replaces other rows.
    """
    properties = delta.open_table(path).metadata().configuration
    mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    feed = properties.get("delta.enableChangeDataFeed", "false").lower() == "true"
    return not (mapped or (feed and replaces) or delta.numbered_columns(path))


def stage_rows(rows: DataFrame, path: str, listing: str, *, gather: bool) -> DataFrame:
    """Write `rows` into files of the table at `path`, list them, and read them back.

    `gather` brings the rows of a partition together first. What is read has all columns of the
    table.
    """
    options = {"mergeSchema": "true", "optimizeWrite": str(gather).lower()}
    protocol, metadata, *files = retrying(lambda: write_files(rows, path, options), path)
    emit("replay.files", files=len(files))
    base, lines = _base(path, listing), [protocol, metadata]
    for file in files:
        action = json.loads(file)
        action["add"]["path"] = f"{base}/{action['add']['path']}"
        lines.append(json.dumps(action))
    write_whole(f"{listing}/_delta_log/{0:020}.json", "".join(f"{x}\n" for x in lines).encode())
    table = delta.open_table(listing)
    listed = _listed(path, listing)
    if len(files) > MAX_DIRECT or not table.is_plain or not all(map(_names_partition, listed)):
        return delta.load(rows.sparkSession, listing)
    return read_files(rows.sparkSession, path, [file["path"] for file in listed], table)


def staged_files(path: str, listing: str) -> list[str]:
    """The listed files, as actions of a log entry, if a commit can add them to the table as it is.

    None of them if they lie elsewhere, or if the table was altered since: its rules may be others.
    """
    if not _fits(delta.open_table(path), delta.open_table(listing)):
        return []
    return [json.dumps({"add": file}) for file in _listed(path, listing)]


def missing_file(path: str, listing: str) -> str | None:
    """The first listed file that is no longer in the table's folder, such as after `VACUUM`."""
    files = [delta.resolve_path(path, file["path"]) for file in _listed(path, listing)]
    return next((file for file, size in sizes_of(files).items() if size is None), None)


def staged_bytes(path: str, listing: str) -> int:
    """The size of the listed files."""
    return sum(file["size"] for file in _listed(path, listing))


def discard(path: str, listing: str) -> None:
    """Delete the listed files of a writer that has ended, but for those that the table has."""
    if not is_table(path):
        return
    committed = set(delta.open_table(path).files()["path"].to_pylist())
    for file in _listed(path, listing):
        if file["path"] not in committed:
            delete_file(delta.resolve_path(path, file["path"]))


def _names_partition(file: dict[str, Any]) -> bool:
    """Whether the path of a file says of which partition it is, as readers of Parquet take it."""
    values = file["partitionValues"]
    plain = all(_PLAIN.fullmatch(part) for item in values.items() for part in map(str, item))
    return plain and file["path"].startswith("".join(f"{k}={v}/" for k, v in values.items()))


def _listed(path: str, listing: str) -> list[dict[str, Any]]:
    """The files that a list names in the folder of a table, as added to that table."""
    if not is_table(listing):
        return []
    base = f"{_base(path, listing)}/"
    added = [action["add"] for action in delta.read_commit(listing, 0) if "add" in action]
    return [
        {**file, "path": file["path"].removeprefix(base)}
        for file in added
        if file["path"].startswith(base)
    ]


def _base(path: str, listing: str) -> str:
    """The table's folder as the list names it, encoded as Delta encodes paths."""
    (scheme, place), (of_listing, here) = _split(path), _split(listing)
    if scheme != of_listing or place.split("/")[0] != here.split("/")[0]:
        return quote(path, safe="/:")
    return quote(posixpath.relpath(place, here))


def _split(path: str) -> tuple[str, str]:
    scheme, separator, place = path.partition("://")
    return (scheme, place) if separator else ("", path)


def _fits(table: OpenedTable, listing: OpenedTable) -> bool:
    now, then = table.metadata(), listing.metadata()
    same = (
        now.configuration == then.configuration and now.partition_columns == then.partition_columns
    )
    known = {field.name: field.to_json() for field in listing.schema().fields}
    return same and all(
        field.to_json() == known[field.name]
        if field.name in known
        else field.nullable and not field.metadata
        for field in table.schema().fields
    )
