"""Built-in operators of pipelines. All work on whole batches.

Operators that depend on order take it from times and values, never from arrival. The same rows at
the same times give the same tables, however they are cut into batches.
"""

from __future__ import annotations

from capstan.pipeline.operators.aggregates import (
    Aggregate,
    AggregateKind,
    count_distinct,
    count_of,
    count_rows,
    first_of,
    last_of,
    max_of,
    mean_of,
    min_of,
    sum_of,
)
from capstan.pipeline.operators.deduplicate import Deduplicate
from capstan.pipeline.operators.joins import IntervalJoin, WindowJoin
from capstan.pipeline.operators.sessions import SessionWindow
from capstan.pipeline.operators.sql import Sql, SqlWindow
from capstan.pipeline.operators.stateless import DivertLate, Filter, MapBatch, Project
from capstan.pipeline.operators.top_n import TopN
from capstan.pipeline.operators.windows import Window

__all__ = [
    "Aggregate",
    "AggregateKind",
    "Deduplicate",
    "DivertLate",
    "Filter",
    "IntervalJoin",
    "MapBatch",
    "Project",
    "SessionWindow",
    "Sql",
    "SqlWindow",
    "TopN",
    "Window",
    "WindowJoin",
    "count_distinct",
    "count_of",
    "count_rows",
    "first_of",
    "last_of",
    "max_of",
    "mean_of",
    "min_of",
    "sum_of",
]
