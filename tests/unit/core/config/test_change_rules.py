"""Merges by sequence as they are declared and requested, and what is stored of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.core.config import Mode, load_config
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request

DECLARED = """\
streams:
  shop:
    source: {format: delta, path: /data/shop}
    workers: {by: key, columns: [id], count: 2}
    time: {domain: epoch}
replays:
  customers:
    stream: shop
    target: customers
"""
MERGING = {"mode": Mode.MERGE, "keys": ("id",), "sequence_by": ("lsn",)}


def declared(folder: Path, **keys: object) -> Request:
    path = folder / "streams.yaml"
    text = DECLARED + "".join(f"    {key}: {json.dumps(value)}\n" for key, value in keys.items())
    path.write_text(text, encoding="utf-8")
    return Request.of_replay(load_config(path, lake=str(folder)).replay("customers"))


def test_a_declared_rule_is_that_of_its_requests(tmp_path: Path) -> None:
    request = declared(
        tmp_path,
        mode="merge",
        keys=["id"],
        sequence_by=["lsn", "part"],
        delete_when="op = 'd'",
        history=True,
    )

    assert (request.sequence_by, request.delete_when) == (("lsn", "part"), "op = 'd'")
    assert request.history
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_a_request_without_a_rule_is_stored_as_before() -> None:
    stored = Request("shop", "customers", mode=Mode.MERGE, keys=("id",)).to_json()

    assert not {"sequence_by", "delete_when", "history"} & stored.keys()
    assert Request.from_json(json.loads(json.dumps(stored))).sequence_by == ()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"sequence_by": ["lsn"]}, "sequence_by needs mode merge"),
        ({"mode": "merge", "keys": ["id"], "history": True}, "history needs sequence_by"),
        ({"mode": "merge", "keys": ["id"], "delete_when": "gone"}, "delete_when needs sequence_by"),
        (
            {"mode": "merge", "keys": ["id"], "sequence_by": ["n"], "delete_when": "at < now()"},
            "calls now",
        ),
        (
            {
                "mode": "merge",
                "keys": ["id"],
                "sequence_by": ["n"],
                "delete_when": "id IN (SELECT id FROM gone)",
            },
            "has a subquery",
        ),
    ],
)
def test_a_declaration_without_a_meaning_is_refused(
    tmp_path: Path, keys: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        declared(tmp_path, **keys)
    assert caught.value.code == "CAP-DECLARE"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sequence_by": ("lsn",)}, "sequence_by needs mode merge"),
        ({**MERGING, "sequence_by": (), "history": True}, "history needs sequence_by"),
        ({**MERGING, "adopt": True}, "cannot adopt rows"),
        ({**MERGING, "delete_when": "op = 'd'; DROP TABLE t"}, "delete_when contains a ';'"),
    ],
)
def test_a_request_without_a_meaning_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        Request("shop", "customers", **fields)  # type: ignore[arg-type]
    assert caught.value.code == "CAP-SEQUENCE"
