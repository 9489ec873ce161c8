"""Text literals that Spark reads from the clock when compared with a time: `at > 'today'`."""

from __future__ import annotations

from pyspark.sql import DataFrame

from capstan.core.config.sql_rules import moments


def clock_literal(sql: str, frame: DataFrame) -> str | None:
    """The first literal of `sql` whose value depends on the clock; None without one."""
    # Only types decide which literals become times: `name = 'today'` compares texts. So Spark's
    # rule for such literals (`SpecialDatetimeValues`) is applied to the plan; nothing is computed.
    literals = moments(sql)
    if not literals:
        return None
    rules = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer  # type: ignore[union-attr]
    whole = frame._jdf.queryExecution().analyzed()
    inner = whole.subqueriesAll()
    for plan in (whole, *(inner.apply(index) for index in range(inner.size()))):
        plain = rules.ReplaceExpressions.apply(plan)
        if not rules.SpecialDatetimeValues.apply(plain).equals(plain):
            return literals[0]
    return None
