"""A graph made of tables and the views over them, as LaminarDB's `from_mv_registry` makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.errors import BaseTableSchemaNotFound
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.operator import OperatorSpec


@dataclass(frozen=True, slots=True)
class View:
    """A view over tables and other views.

    Attributes:
        reads: Their names, in order of ports.
        operator: What it makes of them, or None when it passes rows on.
    """

    reads: Sequence[str]
    operator: OperatorSpec | None = None


def from_views(tables: Mapping[str, pa.Schema], views: Mapping[str, View]) -> Dag:
    """The graph of all views and the tables that they read.

    Tables that no view reads are left out. Ids: tables in the order in which they are first read,
    then views in order of declaration.

    Args:
        tables: The schemas of the tables, by name.
        views: The views by name; they may read views that are declared later.

    Raises:
        EmptyDag: There are no views.
        BaseTableSchemaNotFound: A view reads what is neither a view nor a table.
        DagError: What `DagBuilder.build` raises, such as `CycleDetected`.
    """
    builder = DagBuilder()
    read = dict.fromkeys(name for view in views.values() for name in view.reads)
    for name in read:
        if name in views:
            continue
        if name not in tables:
            reader = next(view for view, read in views.items() if name in read.reads)
            message = f"the view {reader} reads {name}, which is no view and has no schema"
            raise BaseTableSchemaNotFound.create(message, name=name)
        builder.source(name, tables[name])
    for name, view in views.items():
        builder.materialized_view(name, view.operator)
        for source in view.reads:
            builder.connect(source, name)
    return builder.build()
