"""Operators on single rows as Spark plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.operators.stateless import Filter, Project
from capstan.pipeline.spark.plans.conditions import read_condition
from capstan.pipeline.spark.plans.operator_plan import OperatorPlan, column
from capstan.pipeline.spark.wire_format import AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FilterPlan(OperatorPlan[Filter]):
    """The rows that meet a condition."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """A condition that is code, or of operations that Spark does otherwise."""
        if read_condition(self.spec.condition, self.inputs[0]) is not None:
            return None
        return "its condition is code, or compares other than texts, integers and flags"

    @property
    def span(self) -> int:
        """0: a row depends on itself."""
        return 0

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The rows for which the condition is true."""
        condition = read_condition(self.spec.condition, self.inputs[0])
        assert condition is not None
        return inputs[0].where(condition.spark())


class ProjectPlan(OperatorPlan[Project]):
    """Columns under other names."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """A column that is computed, or is the time."""
        for name, definition in self.spec.columns.items():
            if not isinstance(definition, str):
                return f"its column {name} is computed by an expression or a function of Arrow"
            if TIME in (name, definition):
                return "it makes the time of its rows from a column, or a column from their time"
        return None

    @property
    def span(self) -> int:
        """0: a row depends on itself."""
        return 0

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The rows with the columns that are named."""
        made = {name: column(str(old)) for name, old in self.spec.columns.items()}
        return self.emit(inputs[0], F.col(AT), made)
