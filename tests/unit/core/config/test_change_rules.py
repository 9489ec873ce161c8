"""Merges by sequence as they are declared and requested, and what is stored of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capstan.core.config import Mode, ProjectConfig, load_config
from capstan.core.config.change_rules import ChangeRule
from capstan.core.config.loading.validation import read_request
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request, with_preset

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
    ("given", "columns"),
    [
        ("lsn", ("lsn",)),
        ("file as binlog, pos", ("file as binlog", "pos")),
        ({"column": "lsn", "as": "number"}, ("lsn as number",)),
        ([{"column": "at", "as": "time"}, {"column": "n"}], ("at as time", "n")),
        (["at  AS time"], ("at as time",)),
    ],
)
def test_a_sequence_names_columns_and_what_their_text_holds(
    tmp_path: Path, given: object, columns: tuple[str, ...]
) -> None:
    request = declared(tmp_path, mode="merge", keys=["id"], sequence_by=given)

    assert request.sequence_by == columns
    fields = {"stream": "shop", "into": "t", "mode": "merge", "keys": ["id"], "sequence_by": given}
    assert read_request(Request, fields).sequence_by == columns
    rule = ChangeRule.of(("id",), replace(request, history=True))
    assert rule is not None
    assert rule.identity == ("id", *(text.partition(" ")[0] for text in columns))


def test_truncates_and_partial_rows_are_stored(tmp_path: Path) -> None:
    further = {"truncate_when": "op  = 't'", "unchanged": " gone "}
    request = declared(tmp_path, mode="merge", keys=["id"], sequence_by=["n"], **further)
    plain = replace(request, truncate_when=None, unchanged=None)

    assert request.to_json() == {**plain.to_json(), **further}
    assert not further.keys() & plain.to_json().keys()
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    rule, without = (ChangeRule.of(("id",), item) for item in (request, plain))
    assert rule is not None
    assert without is not None
    assert rule.to_json() == {
        **without.to_json(),
        "truncate_when": "op = 't'",
        "unchanged": " gone ",
    }
    assert (rule.shape == without.shape, rule.flags == without.flags) == (False, False)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"sequence_by": ["lsn"]}, "sequence_by needs mode merge"),
        ({"mode": "merge", "keys": ["id"], "history": True}, "history needs sequence_by"),
        ({"mode": "merge", "keys": ["id"], "delete_when": "gone"}, "delete_when needs sequence_by"),
        ({"mode": "merge", "keys": ["id"], "unchanged": "-"}, "unchanged needs sequence_by"),
        ({"mode": "merge", "keys": ["id"], "sequence_by": "n as text"}, "names no kind of order"),
        ({"mode": "merge", "keys": ["id"], "sequence_by": "n number"}, "cannot name a column"),
        ({"mode": "merge", "keys": ["id"], "sequence_by": [{"as": "time"}]}, "give column and as"),
        ({"mode": "merge", "keys": ["id"], "sequence_by": "n, n as number"}, "column n twice"),
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
        ({**MERGING, "adopt": True}, "cannot adopt rows"),
        ({**MERGING, "sequence_by": ("lsn as scn",)}, "kinds are number, version, time or binlog"),
        ({**MERGING, "sequence_by": ("lsn", "lsn as time")}, "has column lsn twice"),
        ({**MERGING, "unchanged": ""}, "unchanged is empty"),
        ({**MERGING, "truncate_when": "now() > at"}, "truncate_when calls now"),
        ({**MERGING, "delete_when": "op = 'd'; DROP TABLE t"}, "delete_when contains a ';'"),
    ],
)
def test_a_request_without_a_meaning_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        Request("shop", "customers", **fields)  # type: ignore[arg-type]
    assert caught.value.code == "CAP-SEQUENCE"


def test_a_merge_without_any_sequence_is_refused() -> None:
    request = Request("shop", "customers", **{**MERGING, "sequence_by": (), "history": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="history needs sequence_by") as caught:
        with_preset(ProjectConfig(Path("streams.yaml"), {}, {}, {}, {}), request)
    assert caught.value.code == "CAP-SEQUENCE"
