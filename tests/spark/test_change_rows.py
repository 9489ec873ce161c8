"""Laws of changes and rows, over many random histories at once: one model in pandas for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from pyspark.sql import functions as F

from capstan.core.config.change_rules import CURRENT, DELETED, VALID_FROM, VALID_TO, ChangeRule
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.output.change_rows import (
    GONE,
    changes_of,
    require_rule_fits,
    require_sequence,
    table_rows,
    table_schema,
)
from capstan.replay.publish.change_merges import after_images, merged_rows, newest_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES, KEYS, CUTS, RECORDS = 40, 4, 4, 24
COLUMNS = ["case", "key", "sequence", "op", "value"]
SCHEMA = "case INT, key INT, sequence INT, op STRING, value DOUBLE"
STORED = "_capstan_deleted BOOLEAN, _capstan_hash_1 BIGINT, _capstan_hash_2 BIGINT, cut INT"
RULE = ChangeRule(("case", "key"), ("sequence",), "op = 'd'")
HISTORY = ChangeRule(("case", "key"), ("sequence",), "op = 'd'", history=True)


def records(random: Random) -> pd.DataFrame:
    """Records of all cases, each in one of its cuts; many have the same key and sequence."""
    rows = [
        (
            case,
            random.choice([None, *range(KEYS)]),
            random.randrange(9),
            random.choice("cuud"),
            random.choice([0.0, 1.5, None]),
            random.randrange(CUTS),
        )
        for case in range(CASES)
        for _ in range(RECORDS)
    ]
    return typed(pd.DataFrame(rows, columns=[*COLUMNS, "cut"]))


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with types that have nulls, which Spark's rows in pandas lack."""
    kinds = {
        "op": "object",
        "value": "Float64",
        **dict.fromkeys((DELETED, GONE, CURRENT), "boolean"),
    }
    return rows.astype({name: kinds.get(name, "Int64") for name in rows.columns})


def listed(rows: pd.DataFrame) -> list[tuple[object, ...]]:
    """The rows as tuples."""
    values = rows.to_numpy(dtype=object).tolist()
    return [tuple(None if pd.isna(value) else value for value in row) for row in values]


def winners(of: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The change with the greatest sequence; of several a delete, then the greatest hash."""
    rank = ["sequence", DELETED, "_capstan_hash_1", "_capstan_hash_2"]
    return of.sort_values(rank).drop_duplicates(by, keep="last")


def latest(of: pd.DataFrame) -> pd.DataFrame:
    """What a table has after all changes, without history."""
    rows = winners(of, ["case", "key"])
    return rows[~rows[DELETED]][COLUMNS]


def versions(of: pd.DataFrame) -> pd.DataFrame:
    """What a table has after all changes, with history."""
    rows = winners(of, ["case", "key", "sequence"]).sort_values("sequence")
    rows[VALID_FROM] = rows["sequence"]
    rows[VALID_TO] = rows.groupby(["case", "key"], dropna=False)["sequence"].shift(-1)
    rows[CURRENT] = rows[VALID_TO].isna()
    return rows[~rows[DELETED]][[*COLUMNS, VALID_FROM, VALID_TO, CURRENT]]


def as_set(rows: pd.DataFrame) -> set[tuple[object, ...]]:
    values = listed(rows)
    assert len(values) == len(set(values))
    return set(values)


@dataclass
class Table:
    """Tables of all cases, with the changes that were kept, cut by cut."""

    spark: SparkSession
    rule: ChangeRule
    changes: pd.DataFrame
    kept: dict[int, list[int]] = field(default_factory=dict)
    """The cuts in effect by case."""
    rows: pd.DataFrame | None = None

    def of(self, cuts: dict[int, list[int]]) -> pd.DataFrame:
        chosen = {(case, cut) for case, some in cuts.items() for cut in some}
        pairs = listed(self.changes[["case", "cut"]])
        return self.changes.iloc[[n for n, pair in enumerate(pairs) if pair in chosen]]

    def frame(self, rows: pd.DataFrame, schema: str) -> DataFrame:
        return self.spark.createDataFrame(listed(rows), schema)

    def move(self, moved: dict[int, int], *, back: bool) -> None:
        """Publish one cut of each case, or roll it back."""
        before = self.kept
        self.kept = {
            case: [c for c in cuts if c != moved.get(case)]
            + ([moved[case]] if case in moved and not back else [])
            for case, cuts in {**{key: [] for key in moved}, **before}.items()
        }
        stored = f"{SCHEMA}, {STORED}"
        columns = [*COLUMNS, DELETED, "_capstan_hash_1", "_capstan_hash_2", "cut"]
        changes = self.frame(self.of(self.kept)[columns], stored)
        moving = self.frame(self.of({k: [v] for k, v in moved.items()})[columns], stored)
        if back or self.rule.history:
            present = self.frame(self.table, table_of(self.rule))
            expected, rows = after_images(self.rule, changes, moving, present)
            merged = merged_rows(self.rule, expected.drop("cut"), rows)
        else:
            others = self.frame(self.of(before)[columns], stored)
            merged = newest_rows(self.rule, moving, others).drop("cut")
        self.merge(typed(merged.toPandas()))

    @property
    def table(self) -> pd.DataFrame:
        names = [*COLUMNS, *self.rule.added]
        return typed(pd.DataFrame(columns=names)) if self.rows is None else self.rows

    def merge(self, rows: pd.DataFrame) -> None:
        """What Delta's MERGE does with the rows."""
        keys = list(self.rule.identity)
        matched = set(listed(rows[keys]))
        assert len(matched) == len(rows)
        present = listed(self.table[keys])
        left = self.table.iloc[[n for n, key in enumerate(present) if key not in matched]]
        self.rows = pd.concat([left, rows[~rows[GONE]][left.columns]], ignore_index=True)


def table_of(rule: ChangeRule) -> str:
    added = f"{VALID_FROM} INT, {VALID_TO} INT, {CURRENT} BOOLEAN"
    return f"{SCHEMA}, {added}" if rule.history else SCHEMA


def by_cut(spark: SparkSession, rule: ChangeRule, made: pd.DataFrame) -> pd.DataFrame:
    """The changes of each cut alone, as its replay keeps them."""
    frame = spark.createDataFrame(listed(made), f"{SCHEMA}, cut INT")
    # The cut stands in for a replay of its own.
    apart = ChangeRule((*rule.keys, "cut"), rule.sequence_by, rule.delete_when, rule.history)
    return typed(changes_of(apart, frame).toPandas())


@pytest.mark.parametrize("rule", [RULE, HISTORY], ids=["latest", "history"])
def test_any_order_of_replays_and_rollbacks_gives_valid_runs(
    spark: SparkSession, rule: ChangeRule
) -> None:
    random = Random(20)
    changes = by_cut(spark, rule, records(random))
    table = Table(spark, rule, changes)
    model = versions if rule.history else latest
    orders = {case: random.sample(range(CUTS), CUTS) for case in range(CASES)}
    for step in range(CUTS):
        table.move({case: order[step] for case, order in orders.items()}, back=False)
        assert as_set(table.table) == as_set(model(table.of(table.kept)))
        if step in (1, CUTS - 1):
            gone = {
                c: random.choice(cuts) for c, cuts in table.kept.items() if random.random() < 0.4
            }
            table.move(gone, back=True)
            assert as_set(table.table) == as_set(model(table.of(table.kept)))
            table.move(gone, back=False)
    assert as_set(table.table) == as_set(model(changes))
    # The tables have been put together by at least one of each kind of change.
    assert {True, False} == set(changes[DELETED])


@pytest.mark.parametrize("rule", [RULE, HISTORY], ids=["latest", "history"])
def test_changes_cut_anyhow_give_the_rows_of_one_replay_over_all(
    spark: SparkSession, rule: ChangeRule
) -> None:
    made = records(Random(7))
    frame = spark.createDataFrame(listed(made), f"{SCHEMA}, cut INT").drop("cut")
    once = typed(table_rows(rule, changes_of(rule, frame)).toPandas())
    parts = [changes_of(rule, frame.where(F.hash("value", "op", "sequence") % 3 == n))
             for n in (-2, -1, 0, 1, 2)]  # fmt: skip
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)

    assert as_set(typed(table_rows(rule, union).toPandas())) == as_set(once)
    assert len(once) > CASES
    assert table_rows(rule, union).schema.names == table_schema(rule, frame.schema).names


def test_equal_sequences_are_decided_by_delete_then_content(spark: SparkSession) -> None:
    rows = [(1, 1, 5, "u", 1.0), (1, 1, 5, "d", 2.0), (1, 2, 5, "u", 1.0), (1, 2, 5, "u", 2.0)]
    changes = changes_of(RULE, spark.createDataFrame(rows, SCHEMA))
    turned = changes_of(RULE, spark.createDataFrame(rows[::-1], SCHEMA))

    assert [r["key"] for r in changes.where(DELETED).collect()] == [1]
    assert as_set(changes.toPandas()) == as_set(turned.toPandas())


def test_a_change_without_a_sequence_is_seen(spark: SparkSession) -> None:
    rows = [(1, 1, None, "u", 1.0), (1, 1, 5, "d", 2.0), (1, 2, 5, "u", 1.0)]
    changes = changes_of(RULE, spark.createDataFrame(rows, SCHEMA))

    with pytest.raises(CheckFailedError, match="CAP-SEQUENCE: a change of case 1, key 1"):
        require_sequence(RULE, changes)
    require_sequence(RULE, changes.where("key = 2"))


def test_a_row_without_a_key_is_refused_and_a_truncate_is_none(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(None, None, 3, "t", None), (1, None, 4, "c", 1.0)], SCHEMA)
    rule = ChangeRule(("key",), ("sequence",), "op = 'd'", truncate_when="op = 't'")
    require_sequence(rule, changes_of(rule, rows.where("op = 't'")))
    require_sequence(RULE, changes_of(RULE, rows.where("op = 'c'")))
    for refused in (rule, ChangeRule(("key",), ("sequence",), "op = 'd'")):
        with pytest.raises(CheckFailedError, match="CAP-SEQUENCE: a change has no key"):
            require_sequence(refused, changes_of(refused, rows))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (ChangeRule(("key",), ("lsn",)), "names column lsn, which the output does not have"),
        (ChangeRule(("key",), ("tags",)), "names tags, but array<int> has no order"),
        (ChangeRule(("key",), ("sequence",), "nosuch = 1"), "delete_when does not fit"),
        (ChangeRule(("key",), ("sequence",), "max(op) = 'd'"), "delete_when does not fit"),
        (ChangeRule(("key",), ("sequence",), "op"), "returns string instead of true or false"),
        (ChangeRule(("key",), ("sequence",), "at < 'now'"), "takes the moment 'now'"),
        (ChangeRule(("key",), ("sequence",), history=True), "a column current, which"),
    ],
)
def test_a_rule_that_does_not_fit_the_output_is_refused(
    spark: SparkSession, rule: ChangeRule, problem: str
) -> None:
    schema = f"{SCHEMA}, tags ARRAY<INT>, at TIMESTAMP, current INT"

    with pytest.raises(InvalidRequestError, match=problem) as caught:
        require_rule_fits(rule, spark.createDataFrame([], schema))
    assert caught.value.code == "CAP-SEQUENCE"
