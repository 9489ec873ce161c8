"""Graphs built from tables and views over them. Reference implementation.

No product code path uses it. Follows LaminarDB's `from_mv_registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.operator import OperatorSpec
from tests.reference.errors import BaseTableSchemaNotFound


@dataclass(frozen=True, slots=True)
class View:
    """A view over tables and other views.

    Attributes:
        reads: Names of the tables and views that it reads, in order of ports.
        operator: Operator that computes the view, or None when it forwards rows.
    """

    reads: Sequence[str]
    operator: OperatorSpec | None = None


def from_views(tables: Mapping[str, pa.Schema], views: Mapping[str, View]) -> Dag:
    """Build the graph of all views and the tables that they read.

    Tables without readers are left out. Ids: tables in the order in which they are first read,
    then views in order of declaration.

    Args:
        tables: Schemas of the tables, by name.
        views: Views by name; a view may read views that are declared later.

    Raises:
        EmptyDag: There are no views.
        BaseTableSchemaNotFound: A view reads a name that is neither a view nor a table.
        DagError: Any error that `DagBuilder.build` raises, such as `CycleDetected`.
    """
    builder = DagBuilder()
    names = dict.fromkeys(name for view in views.values() for name in view.reads)
    for name in names:
        if name in views:
            continue
        if name not in tables:
            reader = next(view for view, declared in views.items() if name in declared.reads)
            message = (
                f"view {reader} reads {name}, which is neither a view nor a table with a schema"
            )
            raise BaseTableSchemaNotFound.create(message, name=name)
        builder.source(name, tables[name])
    for name, view in views.items():
        builder.materialized_view(name, view.operator)
        for source in view.reads:
            builder.connect(source, name)
    return builder.build()
