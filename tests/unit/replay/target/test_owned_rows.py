"""The condition of the rows that runs have put into a target: bounded, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from capstan.core.config import ProjectConfig, Target
from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.target.owned_rows import owned_rows_sql
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from tests.support.jvmless_lake import lay_tape

HOUR = 3_600_000_000
PAIR = TimeType.of(epoch=Kind.BIGINT, event=Kind.BIGINT)
DECLARED = Target(name="named", worker="who", time="day")
DECLARATIONS = ProjectConfig(Path("x.yaml"), {}, {}, {"named": DECLARED}, {})
EVENT = StructType([StructField("event", TimestampType())])
COPY = StructType([StructField("_worker", IntegerType()), StructField("_time", EVENT)])


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A replay of all that there is, of two workers."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", ["a", "b"], [(HOUR,)], None)
    return make_plan(lake, DECLARATIONS, Request("s", "t"))


def covered(
    plan: Plan, regions: Iterable[Region], workers: tuple[int, ...] = (0,)
) -> list[Covered]:
    return [
        Covered(f"t-{n:08x}-1", 1, "s", Scope(plan.target, workers, region), "", "", 0, n)
        for n, region in enumerate(regions, 1)
    ]


def hours(numbers: Iterable[int]) -> list[Region]:
    return [Region(Box((n * HOUR,), ((n + 1) * HOUR,))) for n in numbers]


def depth(condition: str) -> int:
    return max(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in condition))


def test_nothing_is_known_where_nothing_stands(plan: Plan) -> None:
    assert owned_rows_sql(plan, COPY, []) == "false"
    # Nor by what has other coordinates, or is of another table.
    pairs = covered(plan, [Region(Box.everything(PAIR))])
    elsewhere = [Covered("r", 1, "s", Scope("/x", None, hours([1])[0]), "", "", 0, 1)]
    assert owned_rows_sql(plan, COPY, [*pairs, *elsewhere]) == "false"


def test_two_thousand_hours_in_a_row_are_one_condition(plan: Plan) -> None:
    reported = owned_rows_sql(plan, COPY, covered(plan, hours(range(2000)), (0, 1)))
    assert reported == (
        "(`_worker` IN (0, 1) AND (`_time`.`event` >= TIMESTAMP '1970-01-01 00:00:00.000000Z' "
        "AND `_time`.`event` < TIMESTAMP '1970-03-25 08:00:00.000000Z'))"
    )


def test_hours_with_gaps_are_found_by_halving(plan: Plan) -> None:
    reported = owned_rows_sql(plan, COPY, covered(plan, hours(range(0, 4000, 2))))
    assert reported.count("IN (") == 1
    assert reported.count("if(") == 1999
    assert reported.startswith("exists(array(true), one -> (`_worker` IN (0) AND if(")
    assert depth(reported) < 20


def test_predicates_of_many_workers_nest_logarithmically(plan: Plan) -> None:
    own = [covered(plan, hours([2 * n]), (0, n + 1))[0] for n in range(1000)]
    reported = owned_rows_sql(plan, COPY, own)
    assert reported.count("IN (") == 1000
    assert reported.startswith("exists(array(true), one -> (")
    assert depth(reported) < 20


def test_a_target_s_own_columns_are_asked(plan: Plan) -> None:
    named = make_plan(plan.lake, DECLARATIONS, Request("s", "named"))
    days = [Region(Box((24 * n * HOUR,), (24 * (n + 1) * HOUR,))) for n in (0, 1, 2, 5)]
    columns = StructType([StructField("who", StringType()), StructField("day", DateType())])
    assert owned_rows_sql(named, columns, covered(named, days)) == (
        "(`who` IN ('a') AND if(`day` < DATE '1970-01-06', "
        "(`day` >= DATE '1970-01-01' AND `day` < DATE '1970-01-04'), "
        "(`day` >= DATE '1970-01-06' AND `day` < DATE '1970-01-07')))"
    )


def test_of_several_coordinates_the_last_is_halved(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", ["a"], [(0, 0)], None, time_type=PAIR)
    plan = make_plan(lake, DECLARATIONS, Request("s", "t"))
    time = StructType([StructField(name, LongType()) for name in PAIR.names])
    columns = StructType([StructField("_worker", IntegerType()), StructField("_time", time)])
    boxes = [Region(Box((None, since), (5, since + 1))) for since in (0, 1, 3)]
    assert owned_rows_sql(plan, columns, covered(plan, boxes)) == (
        "(`_worker` IN (0) AND if(`_time`.`event` < 3L, "
        "(`_time`.`epoch` < 5L AND `_time`.`event` >= 0L AND `_time`.`event` < 2L), "
        "(`_time`.`epoch` < 5L AND `_time`.`event` >= 3L AND `_time`.`event` < 4L)))"
    )


def told(plan: Plan, *turns: tuple[str, int], columns: StructType = COPY, **more: object) -> str:
    """What is known after runs of streams, each over an hour."""
    listed = [
        replace(covered(plan, hours([hour]))[0], run=f"r-{n:08x}-1", stream=stream)
        for n, (stream, hour) in enumerate(turns)
    ]
    return owned_rows_sql(plan, columns, listed, **more)  # type: ignore[arg-type]


def test_what_another_output_has_covered_since_is_not_known(plan: Plan) -> None:
    one, two = (told(plan, ("s", hour)) for hour in (1, 2))
    assert told(plan, ("other", 1)) == "false"
    assert told(plan, ("other", 1), ("s", 1)) == one
    assert told(plan, ("s", 1), ("other", 1)) == f"({one} AND NOT coalesce({one}, false))"
    # Of what does not meet its own rows nothing is asked.
    assert told(plan, ("s", 1), ("other", 2)) == one
    assert told(plan, ("s", 1), ("other", 1), ("s", 2)) == (
        f"(({one} AND NOT coalesce({one}, false)) OR {two})"
    )
    # However often two outputs take turns, the condition nests no deeper than for one.
    turns = [turn for _ in range(200) for turn in (("s", 1), ("other", 1))]
    assert depth(told(plan, *turns)) < 10
    copies = covered(plan, hours([1]))
    assert owned_rows_sql(plan, COPY, [replace(copies[0], transform="sum")]) == "false"


def test_workers_of_another_stream_are_named_by_label(plan: Plan) -> None:
    named = make_plan(plan.lake, DECLARATIONS, Request("s", "named"))
    columns = StructType([StructField("who", StringType()), StructField("day", TimestampType())])
    turns = ("s", 1), ("other", 1)
    own = told(named, turns[0], columns=columns)
    # Their worker 0 is b, or somebody else's, which is no row of worker a.
    for labels in ({0: "b"}, {0: "x"}):
        assert told(named, *turns, columns=columns, labels={"other": labels}) == own
    for labels in ({"other": {0: "a"}}, {}):
        assert told(named, *turns, columns=columns, labels=labels) != own
