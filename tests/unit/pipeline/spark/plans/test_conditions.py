"""Conditions of Arrow that are understood, and those that are left to the engine."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.pipeline.spark.plans.conditions import read_condition

COLUMNS = pa.schema(
    [
        ("a", pa.int32()),
        ("b", pa.int64()),
        ("a b", pa.int64()),
        ("ab", pa.string()),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("other", pa.date32()),
        ("is_valid(a)", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    "condition",
    [
        pc.field("flag"),
        pc.field("a") > 15,
        pc.field("a b") == -1,
        pc.field("a") <= pc.field("b"),
        pc.field("ab") != 'F"R\\',
        pc.field("ab") == "ä (b) and ",
        pc.field("day").is_valid(),
        pc.field("day") == pc.field("other"),
        (pc.field("a") > 1) & ~(pc.field("b") < 2) | pc.field("ab").is_null(),
        pc.field("flag") == True,  # noqa: E712
        pc.field("x").is_valid(),
    ],
    ids=str,
)
def test_a_condition_is_understood(condition: pc.Expression) -> None:
    read = read_condition(condition, COLUMNS)
    assert read is not None
    assert read.arrow.equals(condition)


@pytest.mark.parametrize(
    "condition",
    [
        pc.field("x") > 1.5,
        pc.field("x") == pc.field("x"),
        pc.field("is_valid(a)") == 3,
        pc.field("a").isin([1, 2]),
        pc.field("a") + 1 == 2,
        pc.field("a") == pa.scalar(1, pa.int32()),
        pc.field("a") == "1",
        pc.field("day") == 5,
        pc.field("ab").is_null(nan_is_null=True),
        pc.field("a"),
        pytest.param(lambda batch: batch.column("flag"), id="a function"),
    ],
    ids=str,
)
def test_another_condition_is_not(condition: object) -> None:
    assert read_condition(condition, COLUMNS) is None
