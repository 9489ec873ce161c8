"""Replays of thousands of workers: certificates and conditions stay small; no JVM anywhere."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import MAX_WORKERS
from capstan.replay.output.certificate import MOST_LISTED, draft_certificate, listed, may_have
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.reporting.formatting import workers_text
from capstan.storage.lake import Lake
from capstan.storage.tape.region_sql import integer_ranges, workers_sql
from tests.support.jvmless_lake import lay_tape
from tests.support.sample_streams import declared, little_stream

NUMBERS = st.one_of(
    st.sets(st.integers(0, 300)),
    st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda ends: set(range(*ends))),
)


def planned(root: Path, count: int, **asked: object) -> Plan:
    lake = Lake.at(root)
    lay_tape(lake, "little", [f"worker {n}" for n in range(count)], [(0,)], None)
    place = pa.struct([("event", pa.timestamp("us", "UTC"))])
    late = [("reason", pa.string()), ("worker", pa.int32()), ("batch", pa.int64()), ("time", place)]
    deltalake.DeltaTable.create(lake.stream("little").late, pa.schema(late))
    request = Request("little", "t", **asked)  # type: ignore[arg-type]
    return make_plan(lake, declared(little_stream(root / "source")), request)


def drafted(plan: Plan) -> dict[str, object]:
    played = [stream.content(plan.reads) for stream in plan.inputs]
    return draft_certificate(plan, played).to_json()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("many")


def test_certificates_of_the_most_workers_are_small(root: Path) -> None:
    actual = drafted(planned(root / "all", MAX_WORKERS))
    assert len(json.dumps(actual)) < 4_000
    assert (actual["format"], actual["records"]) == (2, MAX_WORKERS)
    assert actual["workers"] == {"count": MAX_WORKERS, "numbers": [[0, MAX_WORKERS - 1]]}
    assert actual["replay_workers"] is None
    assert workers_text(actual["workers"]) == "10,000, by number 0 to 9999"


def test_certificates_of_few_workers_count_the_others(root: Path) -> None:
    actual = drafted(planned(root / "few", 1_000, workers=("worker 3", "worker 1")))
    assert actual["format"] == 2
    assert actual["workers"] == ["worker 3", "worker 1"]
    missing = actual["not_covered"]
    assert isinstance(missing, dict)
    assert missing["workers"] == {"count": 998, "numbers": [[0, 0], [2, 2], [4, 999]]}
    assert isinstance(actual["replay_workers"], list)


def test_a_certificate_of_few_workers_is_as_it_was(root: Path) -> None:
    actual = drafted(planned(root / "as it was", MOST_LISTED))
    assert actual["format"] == 1
    assert actual["workers"] == [f"worker {n}" for n in range(MOST_LISTED)]
    assert isinstance(actual["replay_workers"], list)


@given(NUMBERS, NUMBERS)
def test_workers_of_a_certificate_are_met_as_they_are(ours: set[int], theirs: set[int]) -> None:
    printed = json.loads(json.dumps(listed({n: str(n) for n in sorted(ours)})))
    assert may_have(printed, {n: str(n) for n in theirs}) == bool(ours & theirs)
    assert may_have(None, {n: str(n) for n in theirs})


@given(NUMBERS)
def test_stretches_have_all_numbers_and_no_other(numbers: set[int]) -> None:
    actual = integer_ranges(sorted(numbers))
    assert [n for first, last in actual for n in range(first, last + 1)] == sorted(numbers)
    assert all(b < c - 1 for (_, b), (c, _) in pairwise(actual))


@given(NUMBERS)
def test_a_condition_holds_of_its_workers_alone(numbers: set[int]) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE rows (worker INTEGER)")
        database.executemany("INSERT INTO rows VALUES (?)", [(n,) for n in range(301)])
        condition = workers_sql(numbers, "worker")
        actual = database.execute(f"SELECT worker FROM rows WHERE {condition}")
        assert {n for (n,) in actual} == numbers


def test_predicates_of_the_most_workers_are_short() -> None:
    assert len(workers_sql(range(MAX_WORKERS), "worker")) < 100
