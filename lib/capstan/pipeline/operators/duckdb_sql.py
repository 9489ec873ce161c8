"""Validation and execution of SQL text with DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROW_BY_ROW: Final = {"PROJECTION", "FILTER", "EMPTY_RESULT", "UNNEST", "UNION"}
_SCAN: Final = "ARROW_SCAN"
# Written without parentheses, these look like columns.
_CLOCKS: Final = {"current_date", "current_time", "current_timestamp", "localtime"} | {
    "localtimestamp",
    "current_user",
    "session_user",
    "user",
}
# Declared as consistent, but they read the clock; in a plan they are constants.
_CALLED_CLOCKS: Final = {"current_localtime", "current_localtimestamp", "json_serialize_plan"}
_TIMES_WITH_ZONE: Final = {"timetz", "time with time zone"}


def connect() -> DuckDBPyConnection:
    """Open a connection without access to files or the network, in UTC, with one thread."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "enable_external_access": False,
        "preserve_insertion_order": True,
    }
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def run_query(
    connection: DuckDBPyConnection, query: str, tables: dict[str, pa.RecordBatch | pa.Table]
) -> pa.Table:
    """Run a query over rows registered under these names."""
    for name, rows in tables.items():
        connection.register(name, rows)
    try:
        return connection.sql(query).to_arrow_table()
    finally:
        for name in tables:
            connection.unregister(name)


def check_query(query: str, tables: dict[str, pa.Schema], *, row_by_row: bool) -> pa.Schema:
    """Return the columns of a query's result."""
    import duckdb

    connection = connect()
    try:
        # Fetch all rows, or the connection could not run another statement.
        ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        tree = json.loads(text)
        if tree["error"] or len(tree["statements"]) != 1:
            raise ValueError(f"not one SELECT: {tree.get('error_message', query)}")
        _check_names(tree, tables)
        for name, schema in tables.items():
            connection.register(name, schema.empty_table())
        if row_by_row:
            (_, plan), *_ = connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
            _check_plan(json.loads(plan))
        return connection.sql(query).to_arrow_table().schema
    except duckdb.Error as error:
        raise ValueError(str(error)) from error
    finally:
        connection.close()


@cache
def _volatile_functions() -> frozenset[str]:
    """Functions that read anything but rows, or whose value changes between calls."""
    with connect() as connection:
        functions = connection.execute(
            "SELECT function_name, function_type = 'table' FROM duckdb_functions() "
            "WHERE function_type = 'table' OR stability <> 'CONSISTENT'"
        ).fetchall()
        # DuckDB does not state a macro's stability; its definition decides.
        macros = connection.execute(
            "SELECT function_name, json_serialize_sql('SELECT ' || macro_definition) "
            "FROM duckdb_functions() WHERE function_type = 'macro'"
        ).fetchall()
    tables = {name for name, is_table in functions if is_table} - {"unnest"}
    volatile = {name for name, is_table in functions if not is_table} | _CLOCKS | _CALLED_CLOCKS
    # A macro may fail for some values; that does not make it volatile.
    parts_of = [(name, _parts_of(json.loads(text)) - {"error"}) for name, text in macros]
    while more := {name for name, parts in parts_of if parts & {*volatile, _SCAN}} - volatile:
        volatile |= more
    return frozenset(volatile | tables)


def _parts_of(macro: object) -> set[str]:
    """Return the functions and clocks in a macro; includes `_SCAN` when it reads a table."""
    parts = set()
    for node in _nodes(macro):
        if node.get("type") in ("BASE_TABLE", "TABLE_FUNCTION") or node.get("error"):
            parts.add(_SCAN)
        parts.add(str(_called(node, set())).lower())
    return parts


def _check_names(tree: object, tables: dict[str, pa.Schema]) -> None:
    columns = {name for schema in tables.values() for name in schema.names}
    nodes = list(_nodes(tree))
    common = {entry["key"] for node in nodes for entry in _common_tables(node)}
    zoned = any(str(node.get("type_name")).lower() in _TIMES_WITH_ZONE for node in nodes)
    for node in nodes:
        part = _volatile_part(node, columns, zoned=zoned)
        if part is not None:
            raise ValueError(f"{part} has no fixed value")
        if node.get("type") == "BASE_TABLE" and node["table_name"] not in {*tables, *common}:
            raise ValueError(f"no table {node['table_name']}, only {', '.join(tables)}")


def _volatile_part(node: dict[str, object], columns: set[str], *, zoned: bool) -> str | None:
    """Name the part of a node that depends on clock or chance; None when there is none."""
    if node.get("sample") is not None:
        return "a sample"
    name = _called(node, columns)
    if name is None:
        return None
    arguments = node.get("arguments")
    count = len(arguments) if isinstance(arguments, list) else 0
    if name.lower() == "age" and count == 1:
        return "age of one argument, which counts from today,"
    if name.lower() == "timezone" and count == 2 and zoned:
        return "TIME WITH TIME ZONE at a zone, which uses today's offset,"
    return name if name.lower() in _volatile_functions() else None


def _called(node: dict[str, object], columns: set[str]) -> str | None:
    if node.get("class") != "COLUMN_REF":
        name = node.get("function_name")
        return name if isinstance(name, str) else None
    names = node["column_names"]
    if not isinstance(names, list) or len(names) != 1 or names[0] in columns:
        return None
    return names[0] if names[0].lower() in _CLOCKS else None


def _common_tables(node: dict[str, object]) -> list[dict[str, str]]:
    tables = node.get("cte_map")
    return tables["map"] if isinstance(tables, dict) else []


def _check_plan(plan: object) -> None:
    names = [str(node["name"]) for node in _nodes(plan) if "name" in node and "children" in node]
    other = sorted(n for n in names if n not in _ROW_BY_ROW and not n.endswith(_SCAN))
    if other:
        raise ValueError(f"it does not process one row at a time: {', '.join(other)}")


def _nodes(tree: object) -> Iterator[dict[str, object]]:
    if isinstance(tree, dict):
        yield tree
    for child in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    ):
        yield from _nodes(child)
