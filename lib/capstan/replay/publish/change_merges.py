"""The rows to merge into a table when other changes of its keys are to count than before."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.config.change_rules import DELETED, TRUNCATES, ChangeRule
from capstan.core.sql_names import quoted
from capstan.replay.output.change_rows import (
    CUTS,
    GONE,
    HASHES,
    OWN,
    beside_truncates,
    changes_of,
    named,
    of_runs,
    table_rows,
)
from capstan.replay.output.partial_rows import require_values
from capstan.replay.output.sequence_order import place
from capstan.replay.planning.plan import Plan
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import changes_of_plan, in_effect, published_changes
from capstan.replay.target.row_restore import except_all, rows_with_keys
from capstan.storage.delta import delta
from capstan.storage.lake import is_table
from capstan.storage.ledger.tables import kept_changes_path


def kept_changes(spark: SparkSession, plan: Plan) -> DataFrame:
    """The changes that runs have kept beside the target of a plan, whether or not they count."""
    return delta.load(spark, kept_changes_path(plan.lake, plan.target))


def images_after(
    spark: SparkSession, owner: Ownership, rule: ChangeRule, rows: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """The rows that the keys of a replay would have in the target, and those they have now."""
    plan = owner.plan
    changes = moved = named(rows if DELETED in rows.columns else changes_of(rule, rows), "")
    own = changes_of_plan(plan, "", "")
    published = published_changes(owner)
    counted, counting = set(in_effect(published)), set(in_effect((*published, own)))
    if counted:
        kept = kept_changes(spark, plan)
        others = of_runs(kept, {each.name for each in counting - {own}})
        replaced = of_runs(kept, {each.name for each in counted - counting})
        changes = changes.unionByName(others, allowMissingColumns=True)
        moved = moved.unionByName(replaced, allowMissingColumns=True)
    if is_table(plan.target):
        return after_images(rule, changes, moved, delta.load(spark, plan.target))
    wanted, _ = after_images(rule, changes, moved, changes)
    return wanted, wanted.limit(0)


def rows_to_merge(
    rule: ChangeRule,
    kept: DataFrame,
    before: Collection[str],
    after: Collection[str],
    present: DataFrame,
) -> DataFrame:
    """The rows to merge when other changes than before are to count."""
    moved = of_runs(kept, {*before} ^ {*after})
    plain = not rule.history and rule.unchanged is None
    if {*before} < {*after} and plain and not _has_truncates(moved):
        return newest_rows(rule, moved, of_runs(kept, before))
    wanted, rows = after_images(rule, of_runs(kept, after), moved, present)
    return merged_rows(rule, wanted, rows)


def after_images(
    rule: ChangeRule, changes: DataFrame, moved: DataFrame, present: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """The wanted and the present rows of keys of which other changes are in effect than before."""
    # A truncate that moves concerns all keys.
    if _has_truncates(moved):
        moved = moved.unionByName(changes, allowMissingColumns=True)
    wanted = table_rows(rule, rows_with_keys(changes, moved, rule.keys), changes)
    require_values(rule, wanted)
    return wanted, rows_with_keys(present, moved, rule.keys)


def merged_rows(rule: ChangeRule, wanted: DataFrame, present: DataFrame) -> DataFrame:
    """The rows to merge so that present rows become the wanted; those to go by `_capstan_gone`."""
    others = rows_with_keys(present, wanted, rule.identity, how="left_anti")
    gone = others.select(*map(quoted, rule.identity)).distinct()
    return (
        except_all(wanted, present)
        .withColumn(GONE, F.lit(False))
        .unionByName(gone.withColumn(GONE, F.lit(True)), allowMissingColumns=True)
    )


def newest_rows(rule: ChangeRule, added: DataFrame, others: DataFrame) -> DataFrame:
    """The rows to merge, by `_capstan_gone`, when changes are only added, and there is no history.

    Of the other changes, only keys, sequences and hashes are read. The table is not.
    """
    placed = beside_truncates(rule, added, others)
    others = beside_truncates(rule, others, others)
    at = place(rule, added.schema)["at"]
    rank = F.struct(at.alias("at"), DELETED, *HASHES)
    keys = [F.col(quoted(key)).alias(f"_key{i}") for i, key in enumerate(rule.keys)]
    last = others.groupBy(*keys).agg(F.max(rank).alias("_last"))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(rule.keys)]
    newer = F.col("_last").isNull() | (rank > F.col("_last"))
    ended = F.exists(CUTS, lambda cut: cut["at"] > at)
    rows = placed.join(last, same, "left").where(newer).withColumn(GONE, F.col(DELETED) | ended)
    return rows.select(*(quoted(name) for name in added.columns if name not in OWN), GONE)


def _has_truncates(changes: DataFrame) -> bool:
    """Whether truncates are among some changes; a job runs only where a rule had a condition."""
    return TRUNCATES in changes.columns and not changes.where(F.col(TRUNCATES)).isEmpty()
