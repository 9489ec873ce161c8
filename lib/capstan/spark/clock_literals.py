"""Texts that Spark takes for a moment of the clock where they meet a time, as in `at > 'today'`."""

from __future__ import annotations

from pyspark.sql import DataFrame

from capstan.core.config.sql_rules import moments


def moment_in(sql: str, frame: DataFrame) -> str | None:
    """The text of `sql` that would be another moment tomorrow; None where none becomes a time.

    Which texts become times only types can tell: `name = 'today'` is a comparison of texts. So
    Spark is asked whether its rule for such texts (`SpecialDatetimeValues`) finds one.

    Args:
        sql: An expression or a query.
        frame: What came of it. Nothing of it is computed.
    """
    named = moments(sql)
    if not named:
        return None
    rules = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer  # type: ignore[union-attr]
    whole = frame._jdf.queryExecution().analyzed()
    inner = whole.subqueriesAll()
    for plan in (whole, *(inner.apply(index) for index in range(inner.size()))):
        plain = rules.ReplaceExpressions.apply(plan)
        if not rules.SpecialDatetimeValues.apply(plain).equals(plain):
            return named[0]
    return None
