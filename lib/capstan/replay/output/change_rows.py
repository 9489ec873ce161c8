"""Changes of keys as Spark frames, and the rows of a table that they result in.

Each result is a function of the set of changes alone. Of changes of a key with the same sequence, a
delete wins; between two others a whole one, and then the one with the greater content hash. That
order is total up to equal rows, and the same for any cut of the input. A truncate is a change that
deletes, but of no key: it ends the rows of all keys that are before it.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from capstan.core.config.change_rules import (
    CURRENT,
    DELETED,
    TRUNCATES,
    VALID_FROM,
    VALID_TO,
    ChangeRule,
)
from capstan.core.config.sql_rules import moment_problem
from capstan.core.sql_names import quoted
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.output.partial_rows import is_partial, require_readable, resolved
from capstan.replay.output.sequence_order import (
    moment_type,
    orders,
    place,
    problem_with_type,
    unknown,
)
from capstan.spark.clock_literals import clock_literal
from capstan.storage.tape.fingerprint import row_hashes

RUN = "_capstan_run"
"""The column of a kept change with the run and attempt that made it."""

GONE = "_capstan_gone"
"""The column of a merged row that tells whether the table no longer has it."""

CUTS = "_capstan_cuts"
"""The places of all truncates, beside each change."""

HASHES = ("_capstan_hash_1", "_capstan_hash_2")
"""The columns with two hashes of a change."""

OWN = (DELETED, TRUNCATES, RUN, CUTS, *HASHES)
"""The columns of a change that no row of a table has."""

_ORDINAL = "_capstan_ordinal"


def require_rule_fits(rule: ChangeRule, rows: DataFrame) -> None:
    """Check that a rule fits the output of a replay; no job runs."""
    for each in rule.sequence:
        if each.column not in rows.columns:
            raise _misfit(f"sequence_by names column {each.column}, which the output does not have")
        problem = problem_with_type(each, rows.schema[each.column].dataType)
        if problem is not None:
            raise _misfit(problem)
    for name in (*OWN, GONE, _ORDINAL, *rule.added):
        if name in rows.columns:
            raise _misfit(f"the output has a column {name}, which a merge by sequence adds itself")
    for option in ("delete_when", "truncate_when"):
        condition = getattr(rule, option)
        if condition is not None:
            _require_condition(option, condition, rows)


def _require_condition(option: str, condition: str, rows: DataFrame) -> None:
    try:
        selected = rows.select(F.expr(condition).alias("met"))
        kind = selected.schema["met"].dataType
        if isinstance(kind, BooleanType):
            rows.where(F.expr(condition))  # Refuses aggregates, which can be selected.
    except AnalysisException as error:
        problem = next(filter(str.strip, str(error).splitlines()), "")
        raise _misfit(f"{option} does not fit the output: {problem}") from error
    if not isinstance(kind, BooleanType):
        raise _misfit(f"{option} returns {kind.simpleString()} instead of true or false")
    moment = clock_literal(condition, selected)
    if moment is not None:
        raise _misfit(f"{option} {moment_problem(moment)}")


def _misfit(problem: str) -> InvalidRequestError:
    hint = "correct the replay in streams.yaml, or the columns that its transform returns"
    return InvalidRequestError("CAP-SEQUENCE", problem, hint)


def table_schema(rule: ChangeRule | None, schema: StructType) -> StructType:
    """The columns of the target, for output with these columns."""
    if rule is None or not rule.history:
        return schema
    moment = moment_type(rule, schema)
    added = [
        StructField(VALID_FROM, moment),
        StructField(VALID_TO, moment),
        StructField(CURRENT, BooleanType()),
    ]
    return StructType([*schema.fields, *added])


def changes_of(rule: ChangeRule, rows: DataFrame) -> DataFrame:
    """The changes of a replay's output that can matter, whatever other runs have.

    Of each key the last change; with history one per sequence; with partial rows those from the
    last whole one on. Beside the columns of the output they have `_capstan_deleted`, with
    `truncate_when` also `_capstan_truncates`, and two hashes of the row.
    """
    flags = {DELETED: _met(rule.delete_when)}
    if rule.truncate_when is not None:
        truncates = _met(rule.truncate_when)
        flags = {DELETED: flags[DELETED] | truncates, TRUNCATES: truncates}
    flagged = with_hashes(rows).withColumns(flags)
    changes = _winners(rule, flagged, each_sequence=rule.history or rule.unchanged is not None)
    if rule.history or rule.unchanged is None:
        return changes
    last_first = Window.partitionBy(*_keys(rule, changes)).orderBy(
        *(order.desc_nulls_first() for order in orders(rule, changes.schema))
    )
    whole = F.max((~is_partial(rule, changes.schema)).cast("int"))
    later = whole.over(last_first.rowsBetween(Window.unboundedPreceding, -1))
    numbered = changes.withColumn(_ORDINAL, F.coalesce(later, F.lit(0)))
    return numbered.where(F.col(_ORDINAL) == 0).drop(_ORDINAL)


def with_hashes(rows: DataFrame) -> DataFrame:
    """Rows of an output, or changes, with the two hashes of all columns of the output."""
    fields = [field for field in rows.schema.fields if field.name not in OWN]
    hashes = row_hashes(sorted(fields, key=lambda field: field.name))
    return rows.withColumns(dict(zip(HASHES, hashes, strict=True)))


def _met(condition: str | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(F.expr(condition), F.lit(False))


def require_sequence(rule: ChangeRule, changes: DataFrame) -> None:
    """Check that every change has a key, a place in the order, and values that can be looked up."""
    # A change without a place wins until then, so it is seen.
    missing = unknown(rule, changes.schema)
    keyless = F.coalesce(*(F.col(quoted(key)).cast("string") for key in rule.keys)).isNull()
    keys = [F.col(quoted(key)).cast("string").alias(key) for key in rule.keys]
    found = changes.where(missing | (keyless & ~F.col(DELETED))).select(*keys).first()
    if found is None:
        require_readable(rule, changes)
        return
    known = {name: value for name, value in found.asDict().items() if value is not None}
    if not known:
        raise CheckFailedError(
            "CAP-SEQUENCE",
            f"a change has no {' or '.join(rule.keys)}, so it would be a row without a key",
            "have the transform leave such records out, say by truncate_when that they remove all "
            "rows, or declare source.changes, which knows them",
        )
    key = ", ".join(f"{name} {value}" for name, value in known.items())
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


def table_rows(
    rule: ChangeRule, changes: DataFrame, truncates: DataFrame | None = None
) -> DataFrame:
    """The rows that a table has after all these changes of its keys, and these truncates."""
    placed = beside_truncates(rule, changes, changes if truncates is None else truncates)
    at = place(rule, placed.schema)
    cuts = F.col(CUTS)
    partial = rule.unchanged is not None
    last = _winners(rule, placed, each_sequence=rule.history or partial)
    if partial:
        passed = F.size(F.filter(cuts, lambda cut: cut["at"] <= at["at"]))
        last = resolved(rule, last, passed)
    if partial and not rule.history:
        last = _winners(rule, last)
    end = F.array_min(F.filter(cuts, lambda cut: cut["at"] > at["at"]))
    if not rule.history:
        return last.where(~F.col(DELETED) & end.isNull()).drop(*OWN)
    window = Window.partitionBy(*map(quoted, rule.keys)).orderBy(at["at"])
    end = F.least(F.lead(at).over(window), end)
    versions = last.withColumns(
        {VALID_FROM: at["moment"], VALID_TO: end["moment"], CURRENT: end.isNull()}
    )
    return versions.where(~F.col(DELETED)).drop(*OWN)


def beside_truncates(rule: ChangeRule, changes: DataFrame, among: DataFrame) -> DataFrame:
    """Those changes that are no truncates, with the places of the truncates among some changes."""
    if TRUNCATES in changes.columns:
        changes = changes.where(~F.coalesce(F.col(TRUNCATES), F.lit(False)))
    at = place(rule, changes.schema)
    if TRUNCATES not in among.columns:
        return changes.withColumn(CUTS, F.filter(F.array(at), lambda _: F.lit(False)))
    cuts = among.where(F.col(TRUNCATES)).agg(F.collect_set(at).alias(CUTS))
    return changes.crossJoin(F.broadcast(cuts))


def _keys(rule: ChangeRule, changes: DataFrame) -> list[Column]:
    """The columns that tell changes of different keys apart, and truncates from them."""
    flags = [F.coalesce(F.col(TRUNCATES), F.lit(False))] if TRUNCATES in changes.columns else []
    return [*(F.col(quoted(key)) for key in rule.keys), *flags]


def _winners(rule: ChangeRule, changes: DataFrame, *, each_sequence: bool = False) -> DataFrame:
    """The change with the greatest rank of each key, or of each key and sequence."""
    sequence = orders(rule, changes.schema)
    order = [unknown(rule, changes.schema).desc()]
    order += [value.desc_nulls_first() for value in sequence]
    order.append(F.col(DELETED).desc())
    if rule.unchanged is not None:
        order.append(is_partial(rule, changes.schema).asc())
    order += [F.col(name).desc() for name in HASHES]
    by = [*_keys(rule, changes), *(sequence if each_sequence else [])]
    numbered = changes.withColumn(
        _ORDINAL, F.row_number().over(Window.partitionBy(*by).orderBy(*order))
    )
    return numbered.where(F.col(_ORDINAL) == 1).drop(_ORDINAL)
