"""Contents of a lake and output of commands, in a form that compares across versions."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake

if TYPE_CHECKING:
    from capstan.pipeline.definition import Pipeline

Json = dict[str, object]


def tables(root: Path) -> dict[str, Json]:
    """All tables below a folder, with their columns, properties, transactions, notes and rows.

    Staging is left out: maintenance deletes it after some time.
    """
    actual: dict[str, Json] = {}
    for log in sorted(root.rglob("_delta_log")):
        if log.parent.parent.name == "staging":
            continue
        table = deltalake.DeltaTable(log.parent)
        content = table.to_pyarrow_table().to_pylist()
        commits = [json.loads(line) for path in sorted(log.glob("*.json"))
                   for line in path.read_text("utf-8").splitlines()]  # fmt: skip
        notes = [c["commitInfo"].get("userMetadata") for c in commits if "commitInfo" in c]
        actual[str(log.parent.relative_to(root))] = {
            "columns": json.loads(table.schema().to_json()),
            "properties": table.metadata().configuration,
            "partitions": table.metadata().partition_columns,
            "transactions": [[c["txn"]["appId"], c["txn"]["version"]]
                             for c in commits if "txn" in c],
            "notes": [json.loads(note) if note else None for note in notes],
            "rows": [as_json(row) for row in content],
        }  # fmt: skip
    return actual


def as_json(value: object) -> object:
    """A value of a table as JSON; strings that hold JSON are parsed."""
    if isinstance(value, Mapping):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, date | timedelta):
        return str(value)
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return as_json(json.loads(value))
        except ValueError:
            return value
    return value


# Prose, durations, random tokens, sizes of files, and what depends on the age of the lake.
_LEFT_OUT = {"message", "hint", "does", "mermaid", "seconds", "total_time_ns", "token"}
_LEFT_OUT |= {"bytes", "partly_bytes", "rewritten", "files_before", "holds", "staging"}
# Elsewhere `by` has columns, `files` names and `checkpoint` a folder; here they are a user, a
# number, and whether a table got a checkpoint, which depends on the number of its commits.
_DIFFERS: dict[str, type] = {"by": str, "files": int, "checkpoint": bool}
# Event times in the lake are in 2024; times of the clock are later.
_DONE_AT = re.compile(r"20(2[5-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*")


# Keys of earlier versions, and what they are called now: see CHANGELOG.
_RENAMED = {"stood": "unchanged"}


def comparable(value: object) -> object:
    """A value without the parts that differ from run to run; rows of tables are sorted."""
    if isinstance(value, dict):
        actual = {_RENAMED.get(name, name): comparable(inner)
                  for name, inner in value.items() if _stays(name, inner)}  # fmt: skip
        if actual.get("state") == "stopped":
            # What a killed run holds is given up after some hours: the lake may be older.
            actual["state"] = "begun"
        rows = actual.get("rows")
        if isinstance(rows, list):
            rows.sort(key=lambda row: json.dumps(row, sort_keys=True))
        return actual
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return _DONE_AT.sub("then", value) if isinstance(value, str) else value


def _stays(name: str, value: object) -> bool:
    return name not in _LEFT_OUT and not isinstance(value, _DIFFERS.get(name, ()))


def as_far_as(kept: object, given: object) -> object:
    """A value without the keys that an earlier one lacks: later versions may print more."""
    if isinstance(kept, dict) and isinstance(given, dict):
        return {name: as_far_as(kept[name], given[name]) for name in given if name in kept}
    if isinstance(kept, list) and isinstance(given, list) and len(kept) == len(given):
        return [as_far_as(*pair) for pair in zip(kept, given, strict=True)]
    return given


def unmatched(kept: Sequence[object], now: Sequence[object]) -> tuple[list[object], list[object]]:
    """Rows of an earlier version that are not there, and those there that it lacks.

    Later versions may write more columns.
    """
    lost, more = [], list(now)
    for row in kept:
        match = next((n for n, other in enumerate(more) if as_far_as(row, other) == row), None)
        if match is None:
            lost.append(row)
        else:
            del more[match]
    return lost, more


def same_log(kept: Json, now: Json, *, more: bool = False) -> bool:
    """Whether transactions and notes of a table agree, as far back as its log still goes.

    Args:
        kept: The table as the earlier version left it.
        now: The table as it is now.
        more: Whether it may have commits that the earlier version did not make.
    """
    for name in ("transactions", "notes"):
        old, new = kept[name], now[name]
        assert isinstance(old, list), old
        assert isinstance(new, list), new
        rest = list(old)
        added = 0
        for entry in reversed(new):
            if rest and rest[-1] == entry:
                rest.pop()
            else:
                added += 1
        if bool(new) != bool(old) or (added and not (more and not rest)):
            return False
    return True


def write_figures(path: Path, figures: Json) -> None:
    """Write figures to a file; equal figures give equal bytes."""
    text = json.dumps(comparable(figures), sort_keys=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_figures(path: Path) -> dict[str, dict[str, Json]]:
    """Read figures from a file."""
    actual: dict[str, dict[str, Json]] = json.loads(gzip.decompress(path.read_bytes()))
    return actual


def identity_of(pipeline: Pipeline) -> Json:
    """The stored identity of a pipeline: its code hash, and state signatures by sink."""
    signatures = {sink.node: pipeline.signatures(sink.node) for sink in pipeline.sinks}
    return {
        "code_hash": pipeline.code_hash,
        "signatures": {
            sink: {node: dict(parts) for node, parts in actual.items()}
            for sink, actual in signatures.items()
        },
    }
