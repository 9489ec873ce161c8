"""The rows that a merge by sequence would give its keys, before it publishes."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from capstan.core.config.change_rules import DELETED, ChangeRule
from capstan.replay.output.change_rows import changes_of, named, of_runs
from capstan.replay.planning.kept_changes import in_effect
from capstan.replay.planning.plan import Plan
from capstan.replay.publish.change_merges import after_images
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import changes_of_plan, published_changes
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
