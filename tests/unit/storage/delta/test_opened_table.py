"""Tables of others that delta-rs cannot read, or panics at: an error with the table's path."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from capstan.errors import SystemFailureError
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns, rows_of
from capstan.storage.delta.opened_table import OpenedTable

Json = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    for first in range(3):
        rows = pa.table({"k": [first, first + 1], "v": ["a", "b"]})
        deltalake.write_deltalake(str(path), rows, mode="append")
    return path


def commit(table: Path, version: int = 0) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def edit(action: str, change: Callable[[Json], object], version: int = 0) -> Callable[[Path], None]:
    def edited(table: Path) -> None:
        path = commit(table, version)
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for item in actions:
            if action in item:
                change(item[action])
        path.write_text("".join(json.dumps(item) + "\n" for item in actions))

    return edited


def protocol(reader: int, *features: str) -> Callable[[Path], None]:
    listed = {"readerFeatures": [*features], "writerFeatures": [*features]} if features else {}
    values = {"minReaderVersion": reader, "minWriterVersion": 7 if features else 5, **listed}
    return edit("protocol", lambda old: (old.clear(), old.update(values)))


def schema(kind: object) -> Callable[[Path], None]:
    field = {"name": "k", "type": kind, "nullable": True, "metadata": {}}
    text = json.dumps({"type": "struct", "fields": [field]})
    return edit("metaData", lambda old: old.update(schemaString=text))


BROKEN: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda table: commit(table, 1).write_text("no json\n"),
    "null": lambda table: commit(table, 1).write_text("null\n"),
    "bytes": lambda table: commit(table, 1).write_bytes(bytes(range(256))),
    "half a line": lambda table: commit(table, 2).write_text(commit(table, 2).read_text()[:100]),
    "gap": lambda table: commit(table, 1).unlink(),
    "no first commit": lambda table: commit(table, 0).unlink(),
    "empty log": lambda table: [file.unlink() for file in (table / "_delta_log").iterdir()],
    "the log is a file": lambda table: (
        shutil.rmtree(table / "_delta_log"),
        (table / "_delta_log").write_text("x"),
    ),
    "a file": lambda table: (shutil.rmtree(table), table.write_text("x")),
    "nothing": shutil.rmtree,
    "no such checkpoint": lambda table: (table / "_delta_log" / "_last_checkpoint").write_text(
        '{"version": 99, "size": 3}'
    ),
    "unknown version": protocol(9),
    "unknown feature": protocol(3, "teleport"),
    "no schema": edit("metaData", lambda old: old.update(schemaString="{nope")),
    "unknown type": schema("quark"),
    "too wide": schema("decimal(99,3)"),
    "no such partition": edit("metaData", lambda old: old.update(partitionColumns=["nope"])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_table_that_cannot_be_opened_is_named(table: Path, name: str) -> None:
    BROKEN[name](table)
    with pytest.raises(SystemFailureError) as caught:
        delta.open_table(str(table))
    assert caught.value.code in ("CAP-TABLE", "CAP-DAMAGED", "CAP-NO-ACCESS")
    assert str(table) in caught.value.message
    assert caught.value.fields["path"] == str(table)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["a[1]", "a^b", "a|b", "a\0b"])
def test_a_path_at_which_rust_panics_is_an_error(tmp_path: Path, name: str) -> None:
    if "\0" not in name:
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    with pytest.raises(SystemFailureError, match="CAP-TABLE"):
        OpenedTable(str(tmp_path / name))


@pytest.mark.parametrize("version", [-1, 3, 2**40, 2**70])
def test_a_version_that_is_not_there_is_refused_at_once(table: Path, version: int) -> None:
    with pytest.raises(SystemFailureError, match=f"CAP-TABLE: .* no version {version}: the newest"):
        delta.open_table(str(table), version)
    assert delta.open_table(str(table), 1).version() == 1


def mapped(table: Path) -> None:
    """Give the columns other names in the files, as column mapping does."""

    def change(old: Json) -> None:
        whole = json.loads(old["schemaString"])
        for number, field in enumerate(whole["fields"], start=1):
            field["metadata"] = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            }
        old.update(
            schemaString=json.dumps(whole), configuration={"delta.columnMapping.mode": "name"}
        )

    protocol(2)(table)
    edit("metaData", change)(table)


NOT_PLAIN: dict[str, Callable[[Path], None]] = {
    "deletionVectors": protocol(3, "deletionVectors"),
    "columnMapping": mapped,
    "v2Checkpoint": protocol(3, "v2Checkpoint"),
    "typeWidening": protocol(3, "typeWidening"),
    "vacuumProtocolCheck": protocol(3, "vacuumProtocolCheck"),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_files_of_a_table_with_features_are_not_read_past_them(table: Path, name: str) -> None:
    NOT_PLAIN[name](table)
    for read in (rows_of, lambda path: read_columns(path, ["k"])):
        with pytest.raises(SystemFailureError, match=f"CAP-TABLE: .*{name}"):
            read(str(table))


def test_a_table_with_times_without_a_zone_is_plain(table: Path) -> None:
    protocol(3, "timestampNtz")(table)
    assert delta.open_table(str(table)).is_plain
    assert read_columns(str(table), ["k"]).num_rows == 6
