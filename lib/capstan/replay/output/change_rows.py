"""Changes of keys as Spark frames, and the rows of a table that they result in.

Each result is a function of the set of changes alone. Of changes of a key with the same sequence, a
delete wins; between two others, the one with the greater content hash. That order is total up to
equal rows, and the same for any cut of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, BooleanType, StructField, StructType

from capstan.core.config.change_rules import CURRENT, DELETED, VALID_FROM, VALID_TO, ChangeRule
from capstan.core.config.sql_rules import moment_problem
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.output.row_restore import except_all, rows_with_keys
from capstan.spark.clock_literals import clock_literal
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RUN = "_capstan_run"
"""The column of a kept change with the run and attempt that made it."""

GONE = "_capstan_gone"
"""The column of a merged row that tells whether the table no longer has it."""

_HASHES = ("_capstan_hash_1", "_capstan_hash_2")
_ORDINAL = "_capstan_ordinal"
_OWN = (DELETED, RUN, *_HASHES)


def require_rule_fits(rule: ChangeRule, rows: DataFrame) -> None:
    """Check that a rule fits the output of a replay; no job runs.

    Raises:
        InvalidRequestError: `CAP-SEQUENCE`, naming the column or the condition.
    """
    for name in rule.sequence_by:
        if name not in rows.columns:
            raise _misfit(f"sequence_by names column {name}, which the output does not have")
        kind = rows.schema[name].dataType
        if not isinstance(kind, AtomicType):
            raise _misfit(f"sequence_by names {name}, but {kind.simpleString()} has no order")
    for name in (*_OWN, GONE, _ORDINAL, *rule.added):
        if name in rows.columns:
            raise _misfit(f"the output has a column {name}, which a merge by sequence adds itself")
    if rule.delete_when is not None:
        _require_condition(rule.delete_when, rows)


def _require_condition(condition: str, rows: DataFrame) -> None:
    try:
        selected = rows.select(F.expr(condition).alias("met"))
        kind = selected.schema["met"].dataType
        if isinstance(kind, BooleanType):
            rows.where(F.expr(condition))  # Refuses aggregates, which can be selected.
    except AnalysisException as error:
        problem = next(filter(str.strip, str(error).splitlines()), "")
        raise _misfit(f"delete_when does not fit the output: {problem}") from error
    if not isinstance(kind, BooleanType):
        raise _misfit(f"delete_when returns {kind.simpleString()} instead of true or false")
    moment = clock_literal(condition, selected)
    if moment is not None:
        raise _misfit(f"delete_when {moment_problem(moment)}")


def _misfit(problem: str) -> InvalidRequestError:
    hint = "correct the replay in streams.yaml, or the columns that its transform returns"
    return InvalidRequestError("CAP-SEQUENCE", problem, hint)


def table_schema(rule: ChangeRule | None, schema: StructType) -> StructType:
    """The columns of the target, for output with these columns."""
    if rule is None or not rule.history:
        return schema
    moment = schema[rule.sequence_by[0]].dataType
    added = [
        StructField(VALID_FROM, moment),
        StructField(VALID_TO, moment),
        StructField(CURRENT, BooleanType()),
    ]
    return StructType([*schema.fields, *added])


def changes_of(rule: ChangeRule, rows: DataFrame) -> DataFrame:
    """The changes of a replay's output: of each key the last one, or one per sequence.

    Args:
        rule: The rule.
        rows: The output; several rows may have the same key.

    Returns:
        The columns of `rows`, `_capstan_deleted`, and two hashes of the row.
    """
    fields = sorted(rows.schema.fields, key=lambda field: field.name)
    condition = F.lit(False) if rule.delete_when is None else F.expr(rule.delete_when)
    hashes = dict(zip(_HASHES, row_hashes(fields), strict=True))
    flagged = rows.withColumns({DELETED: F.coalesce(condition, F.lit(False)), **hashes})
    return _winners(rule, flagged, rule.identity)


def require_sequence(rule: ChangeRule, changes: DataFrame) -> None:
    """Check that every change has a sequence. One without any wins until then, so it is seen.

    Raises:
        CheckFailedError: `CAP-SEQUENCE`, naming a key.
    """
    lacking = [F.col(quoted(name)).isNull() for name in rule.sequence_by]
    missing = lacking[0]
    for condition in lacking[1:]:
        missing |= condition
    found = changes.where(missing).select(*map(quoted, rule.keys)).first()
    if found is not None:
        key = ", ".join(f"{name} {value}" for name, value in found.asDict().items())
        raise CheckFailedError(
            "CAP-SEQUENCE",
            f"a change of {key} has no {' or '.join(rule.sequence_by)}, so its order is unknown",
            "have the transform leave such records out, or name other columns in sequence_by",
        )


def named(changes: DataFrame, name: str) -> DataFrame:
    """Changes with the name of the attempt that made them."""
    return changes.withColumn(RUN, F.lit(name))


def of_runs(changes: DataFrame, names: Collection[str]) -> DataFrame:
    """The kept changes of some attempts."""
    return changes.where(F.col(RUN).isin(sorted(names)))


def table_rows(rule: ChangeRule, changes: DataFrame) -> DataFrame:
    """The rows that a table has after all these changes of its keys."""
    last = _winners(rule, changes, rule.identity)
    if not rule.history:
        return last.where(~F.col(DELETED)).drop(*_OWN)
    window = Window.partitionBy(*map(quoted, rule.keys)).orderBy(*map(quoted, rule.sequence_by))
    moment = F.col(quoted(rule.sequence_by[0]))
    versions = last.withColumns(
        {
            VALID_FROM: moment,
            VALID_TO: F.lead(moment).over(window),
            CURRENT: F.lead(F.lit(True)).over(window).isNull(),
        }
    )
    return versions.where(~F.col(DELETED)).drop(*_OWN)


def after_images(
    rule: ChangeRule,
    changes: DataFrame,
    moved: DataFrame,
    present: DataFrame,
) -> tuple[DataFrame, DataFrame]:
    """The rows of keys whose changes in effect are others than before, and their present rows.

    Args:
        rule: The rule.
        changes: All changes in effect.
        moved: The changes that begin or cease to be in effect.
        present: The rows of the table.
    """
    wanted = table_rows(rule, rows_with_keys(changes, moved, rule.keys))
    return wanted, rows_with_keys(present, moved, rule.keys)


def merged_rows(rule: ChangeRule, wanted: DataFrame, present: DataFrame) -> DataFrame:
    """The rows to merge so that the present rows of some keys become the wanted ones.

    Returns:
        The rows that are new or other than before, and those that are gone, by `_capstan_gone`.
    """
    identity = [F.col(quoted(name)) for name in rule.identity]
    kept = wanted.select(*identity)
    gone = _without(present.select(*identity).distinct(), kept, rule.identity)
    altered = except_all(wanted, present)
    return altered.withColumn(GONE, F.lit(False)).unionByName(
        gone.withColumn(GONE, F.lit(True)), allowMissingColumns=True
    )


def newest_rows(rule: ChangeRule, added: DataFrame, others: DataFrame) -> DataFrame:
    """The rows to merge when changes are only added, and the table has the last of each key.

    Of the other changes, only keys, sequences and hashes are read. The table is not.

    Args:
        rule: A rule without history.
        added: The changes of one replay.
        others: All other changes in effect.

    Returns:
        The changes that win, as rows by `_capstan_gone`.
    """
    rank = F.struct(*map(quoted, rule.sequence_by), DELETED, *_HASHES)
    keys = [F.col(quoted(key)).alias(f"_key{i}") for i, key in enumerate(rule.keys)]
    last = others.groupBy(*keys).agg(F.max(rank).alias("_last"))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(rule.keys)]
    newer = F.col("_last").isNull() | (rank > F.col("_last"))
    rows = added.join(last, same, "left").where(newer).withColumn(GONE, F.col(DELETED))
    return rows.select(*(quoted(name) for name in added.columns if name not in _OWN), GONE)


def _winners(rule: ChangeRule, changes: DataFrame, by: Sequence[str]) -> DataFrame:
    """The change with the greatest rank in each group of changes."""
    order: list[Column] = [F.col(quoted(name)).desc_nulls_first() for name in rule.sequence_by]
    order += [F.col(name).desc() for name in (DELETED, *_HASHES)]
    window = Window.partitionBy(*map(quoted, by)).orderBy(*order)
    numbered = changes.withColumn(_ORDINAL, F.row_number().over(window))
    return numbered.where(F.col(_ORDINAL) == 1).drop(_ORDINAL)


def _without(rows: DataFrame, others: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that share no key with one of the others."""
    renamed = others.select(*(F.col(quoted(k)).alias(f"_key{i}") for i, k in enumerate(keys)))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(keys)]
    return rows.join(renamed, same, "left_anti")
