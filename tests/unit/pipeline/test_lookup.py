"""Declarations of lookup tables, and what of them decides the identity of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.errors import InvalidRequestError
from capstan.pipeline import Lookup, Pipeline, Sink
from capstan.pipeline.graph.errors import StateChanged
from capstan.pipeline.graph.signature import require_unchanged
from tests.support.lookup_pipelines import CUSTOMERS, REFERENCES

NAMED = Pipeline("named", REFERENCES["named_orders"], (Sink("out"),), lookups=(CUSTOMERS,))
HOURLY = Pipeline("hourly", REFERENCES["by_customer"], (Sink("out"),))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"left_on": ()}, "must have as many key columns"),
        ({"right_on": ("id", "region")}, "must have as many key columns"),
        ({"columns": ()}, "must name each column that it gives once"),
        ({"columns": ("name", "name")}, "must name each column that it gives once"),
        ({"version": -1}, "cannot have the version -1"),
    ],
)
def test_wrong_columns_and_versions_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^CAP-PIPELINE: .*customers, which {said}"):
        replace(NAMED, lookups=(replace(CUSTOMERS, **changes),))


@pytest.mark.parametrize("changes", [{"name": "No"}, {"table": "../x"}, {"table": "main..c"}])
def test_names_are_checked_before_they_become_paths(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-NAME"):
        replace(CUSTOMERS, **changes)
    assert Lookup("a", "b", "s3://c/d", ("x",), ("x",), ("y",)).table == "s3://c/d"


@pytest.mark.parametrize(
    ("lookups", "said"),
    [
        ((CUSTOMERS, CUSTOMERS), "several lookups of one name: customers, customers"),
        (
            (replace(CUSTOMERS, source="payments"),),
            "no stream at 'payments', which lookup customers",
        ),
        ((replace(CUSTOMERS, prefix=""),), "not declare column name of lookup customers"),
    ],
)
def test_a_graph_without_a_place_for_a_lookup_is_refused(
    lookups: tuple[Lookup, ...], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^CAP-PIPELINE: .*{said}"):
        replace(NAMED, lookups=lookups).dag()


def test_what_decides_its_columns_is_part_of_the_code() -> None:
    plain = replace(NAMED, lookups=()).code_hash
    changes: list[dict[str, Any]] = [{"version": 3}, {"table": "clients"}, {"right_on": ("key",)}]
    others = [replace(NAMED, lookups=(replace(CUSTOMERS, **change),)) for change in changes]
    hashes = [plain, *(pipeline.code_hash for pipeline in (NAMED, *others))]
    assert len(set(hashes)) == len(hashes)
    assert NAMED.code_hash == replace(NAMED).code_hash


def test_a_state_depends_on_the_lookup_but_not_on_its_version() -> None:
    joined = replace(HOURLY, lookups=(replace(CUSTOMERS, columns=("name",)),))
    saved = joined.signatures("out")
    newer = replace(joined, lookups=(replace(joined.lookups[0], version=4),))
    require_unchanged(saved, newer.signatures("out"), whole=True)
    other = replace(joined, lookups=(replace(joined.lookups[0], table="clients"),))
    with pytest.raises(StateChanged, match="orders has changed .*lookup customers was"):
        require_unchanged(saved, other.signatures("out"), whole=True)
    with pytest.raises(StateChanged, match="it is new"):
        require_unchanged(HOURLY.signatures("out"), saved, whole=True)
