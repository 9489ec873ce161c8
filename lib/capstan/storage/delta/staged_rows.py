"""Rows that are written into a table and not committed yet, listed in a Delta table of their own.

No reader of the table sees them. The list names files in the table's folder, so it can be loaded as
any Delta table, and the commit that adds the files writes no row. Its paths are relative where both
lie in the same place: then they move together.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any
from urllib.parse import quote

from deltalake import Schema
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from capstan.storage.delta import delta
from capstan.storage.delta.commits import retrying
from capstan.storage.delta.data_files import MAX_DIRECT, read_files
from capstan.storage.delta.idempotent_write import write_files
from capstan.storage.delta.opened_table import OpenedTable, is_plain
from capstan.storage.lake import (
    delete_file,
    delete_folder,
    is_table,
    move_file,
    read_if_any,
    sizes_of,
    write_whole,
)
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


def stage_rows(
    rows: DataFrame, path: str, listings: Sequence[str], *, gather: bool, apart: str | None = None
) -> DataFrame:
    """Write `rows` into files of the table at `path`, list them, and read them back.

    `gather` brings the rows of a partition together first. Of several listings, the column `apart`
    has the number of the one that a row's file is for; nobody else writes under its name. What is
    read has all columns of the table.
    """
    options = {"mergeSchema": "true", "optimizeWrite": str(gather).lower()}
    spark = rows.sparkSession
    written = retrying(lambda: write_files(rows, path, options, apart), path)
    protocol, metadata, *actions = written
    files = [json.loads(action)["add"] for action in actions]
    parts: list[list[dict[str, Any]]] = [files]
    if apart is not None:
        parts = _parted(path, files, apart, len(listings))
    emit("replay.files", files=len(files))
    for listing, listed in zip(listings, parts, strict=True):
        base = _base(path, listing)
        adds = [{"add": {**file, "path": f"{base}/{file['path']}"}} for file in listed]
        lines = [protocol, metadata, *map(json.dumps, adds)]
        write_whole(_entry(listing), "".join(f"{line}\n" for line in lines).encode())
    plain = is_plain(json.loads(protocol)["protocol"]) and all(map(_names_partition, files))
    if plain and (apart or len(files) <= MAX_DIRECT):
        columns = StructType.fromJson(json.loads(json.loads(metadata)["metaData"]["schemaString"]))
        return read_files(spark, path, [file["path"] for file in files], columns)
    return reduce(DataFrame.union, (delta.load(spark, listing) for listing in listings))


def _parted(
    path: str, files: Sequence[dict[str, Any]], apart: str, count: int
) -> list[list[dict[str, Any]]]:
    """Files by the value of their first partition, which they lose: `count` lists of them."""
    # Readers that take partitions from paths would refuse a column that the table does not have.
    parts: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for file in files:
        number = file["partitionValues"].pop(apart)
        before, file["path"] = file["path"], file["path"].replace(f"{apart}={number}/", "", 1)
        move_file(delta.resolve_path(path, before), delta.resolve_path(path, file["path"]))
        parts[int(number)].append(file)
    for number in range(count):
        delete_folder(f"{path}/{apart}={number}")
    return parts


def staged_files(path: str, listing: str) -> list[str]:
    """The listed files, as actions of a log entry, if a commit can add them to the table as it is.

    None of them if they lie elsewhere, or if the table was altered since: its rules may be others.
    """
    actions = _actions(listing)
    if not any(_fits(delta.open_table(path), each) for each in _of(actions, "metaData")):
        return []
    return [json.dumps({"add": file}) for file in _within(path, listing, actions)]


def count_staged(listing: str) -> int:
    """The number of listed rows, by the statistics of their files."""
    stats = (json.loads(file.get("stats") or "{}") for file in _of(_actions(listing), "add"))
    return sum(each.get("numRecords", 0) for each in stats)


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


def _entry(listing: str) -> str:
    """The only entry in the log of a list."""
    return f"{listing}/_delta_log/{0:020}.json"


def _actions(listing: str) -> list[dict[str, Any]]:
    """What a list says, read without opening a table; nothing if there is none."""
    return list(map(json.loads, (read_if_any(_entry(listing)) or "").splitlines()))


def _of(actions: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _listed(path: str, listing: str) -> list[dict[str, Any]]:
    """The files that a list names in the folder of a table, as added to that table."""
    return _within(path, listing, _actions(listing))


def _within(path: str, listing: str, actions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    base = f"{_base(path, listing)}/"
    return [
        {**file, "path": file["path"].removeprefix(base)}
        for file in _of(actions, "add")
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


def _fits(table: OpenedTable, staged: Mapping[str, Any]) -> bool:
    """Whether a table is as it was when rows were staged, by the metadata in their list."""
    now = table.metadata()
    then = staged.get("configuration", {}), staged["partitionColumns"]
    known = {
        field.name: field.to_json() for field in Schema.from_json(staged["schemaString"]).fields
    }
    return (now.configuration, now.partition_columns) == then and all(
        field.to_json() == known[field.name]
        if field.name in known
        else field.nullable and not field.metadata
        for field in table.schema().fields
    )
