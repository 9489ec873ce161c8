"""Presets of change streams as they are declared, and the replays that they complete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from capstan.core.config import ByColumn, Mode, ProjectConfig, load_config
from capstan.core.config.changes import Changes
from capstan.core.config.changes.model import columns_of
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request, with_preset

DEBEZIUM = {
    "format": "debezium",
    "database": "postgresql",
    "columns": "id BIGINT, name STRING",
    "keys": ["id"],
}


def declared(folder: Path, changes: Any, **replay: Any) -> ProjectConfig:
    source = {"format": "kafka", "options": {"subscribe": "shop"}, "changes": changes}
    if isinstance(changes, dict) and changes.get("format") == "delta":
        source |= {"format": "delta", "path": "/data/shop", "options": changes.pop("options", {})}
    select = changes.pop("select", None) if isinstance(changes, dict) else None
    source |= {} if select is None else {"select": select}
    stream = {
        "source": source,
        "workers": {"by": "key", "columns": ["id"], "count": 2},
        "time": {"domain": "epoch"},
    }
    replays = {"customers": {"stream": "shop", "target": "customers", "mode": "merge", **replay}}
    path = folder / "streams.yaml"
    data = {"streams": {"shop": stream}, "replays": replays}
    path.write_text(json.dumps(data), encoding="utf-8")
    return load_config(path, lake=str(folder))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"format": "avro", "keys": "id"}, "is none of: debezium, delta or kafka"),
        ({**DEBEZIUM, "database": None}, "needs a database"),
        ({**DEBEZIUM, "database": "db2"}, "is none of: postgresql"),
        ({**DEBEZIUM, "columns": None}, "needs the columns of its rows"),
        ({**DEBEZIUM, "columns": "id, name"}, "are no columns"),
        ({**DEBEZIUM, "columns": "id INT, ID INT"}, "has column 'id' twice"),
        ({**DEBEZIUM, "columns": "id INT, __op STRING"}, "names that begin with __"),
        ({**DEBEZIUM, "keys": "no"}, "has key 'no'"),
        ({**DEBEZIUM, "sequence": "lsn"}, "unknown key"),
        ({**DEBEZIUM, "select": "id"}, "a select or where of its own"),
        (
            {"format": "kafka", "columns": "id INT", "keys": "id", "database": "mysql"},
            "only format",
        ),
        ({"format": "delta", "keys": "id", "columns": "id INT"}, "those of its table"),
        ({"format": "delta", "keys": "id", "options": {"readChangeFeed": "false"}}, "need the opt"),
        ({"format": "delta", "keys": "id", "options": {"readchangefeed": "false"}}, "need the opt"),
    ],
)
def test_a_preset_without_a_meaning_is_refused(
    tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    changes = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        declared(tmp_path, changes)
    assert caught.value.code == "CAP-DECLARE"


def test_columns_may_be_nested_and_quoted() -> None:
    columns = columns_of("`a, b` DECIMAL(9, 2), c: STRUCT<d: INT, e: MAP<STRING, INT>>, f INT")
    assert [(column.name, column.kind) for column in columns] == [
        ("a, b", "DECIMAL(9, 2)"),
        ("c", "STRUCT<d: INT, e: MAP<STRING, INT>>"),
        ("f", "INT"),
    ]


@pytest.mark.parametrize("declares", [False, True])
def test_a_preset_gives_the_rule_of_a_merge(tmp_path: Path, declares: bool) -> None:
    config = declared(tmp_path, dict(DEBEZIUM))
    request = Request("shop", "customers", mode=Mode.MERGE)
    if declares:
        request = Request.of_replay(config.replay("customers"))

    whole = with_preset(config, request)

    assert (whole.keys, whole.sequence_by) == (("id",), ("__lsn", "__offset"))
    assert (whole.delete_when, whole.truncate_when) == ("__op = 'd'", "__op = 't'")
    assert whole.unchanged == "__debezium_unavailable_value"
    assert with_preset(config, whole) == whole
    assert with_preset(config, replace(request, history=True)).history


@pytest.mark.parametrize("mode", [Mode.REPLACE, Mode.APPEND])
def test_other_modes_are_as_they_are(tmp_path: Path, mode: Mode) -> None:
    config = declared(tmp_path, dict(DEBEZIUM))
    request = Request("shop", "customers", mode=mode)
    assert with_preset(config, request) is request


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys", ("name",)),
        ("sequence_by", ("__offset",)),
        ("delete_when", "__op = 'x'"),
        ("truncate_when", "false"),
        ("unchanged", "~"),
    ],
)
def test_what_contradicts_the_preset_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    config = declared(tmp_path, dict(DEBEZIUM))
    fields: dict[str, Any] = {"mode": Mode.MERGE, name: value}
    with pytest.raises(InvalidRequestError, match=f"{name} is") as caught:
        with_preset(config, Request("shop", "customers", **fields))
    assert caught.value.code == "CAP-SEQUENCE"
    with pytest.raises(InvalidRequestError, match=f"{name} is") as caught:
        declared(tmp_path, dict(DEBEZIUM), **{name: value})
    assert caught.value.code == "CAP-DECLARE"


def test_the_sources_of_a_preset_can_be_made_again(tmp_path: Path) -> None:
    source = declared(tmp_path, {"format": "delta", "keys": ["id"]}).streams["shop"].source
    assert isinstance(source.changes, Changes)
    assert source.options["readChangeFeed"] == "true"
    assert replace(source, path="/other").select == source.select


def test_a_truncate_has_a_worker(tmp_path: Path) -> None:
    config = declared(tmp_path, dict(DEBEZIUM)).streams["shop"]
    with pytest.raises(ValidationError, match="a truncate has none"):
        replace(config, workers=ByColumn("name"))
    assert replace(config, workers=ByColumn("__op")).workers == ByColumn("__op")
