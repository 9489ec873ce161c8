"""Common parts of the graphs of Nexmark's queries: the source of events, and shorthands."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from capstan.pipeline import TIME, DagBuilder, OperatorSpec
from capstan.pipeline.operators import MapBatch, Project

INSTANT: Final = pa.timestamp("us", tz="UTC")


def _struct(texts: str, numbers: str, instants: str = "") -> pa.StructType:
    kinds = dict.fromkeys(texts.split(), pa.string())
    kinds |= dict.fromkeys(numbers.split(), pa.int64())
    kinds |= dict.fromkeys(instants.split(), INSTANT)
    return pa.struct(list(kinds.items()))


_STRUCTS: Final = {
    "person": pa.struct(
        [("id", pa.int64()), *_struct("name emailAddress creditCard city state extra", "")]
    ),
    "auction": pa.struct(
        [
            ("id", pa.int64()),
            *_struct("itemName description", "initialBid reserve", "expires"),
            *_struct("", "seller category"),
            ("extra", pa.string()),
        ]
    ),
    "bid": pa.struct([*_struct("", "auction bidder price"), *_struct("channel url extra", "")]),
}


def _only(kind: str) -> MapBatch:
    """The events of one kind, with their fields as columns."""

    def unfolded(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.filter(batch.column(kind).is_valid())
        names = [TIME, "dateTime", *(field.name for field in _STRUCTS[kind])]
        columns = [rows.column(TIME), rows.column("dateTime"), *rows.column(kind).flatten()]
        return pa.RecordBatch.from_arrays(columns, names)

    return MapBatch(unfolded, frozenset({TIME, "dateTime"}))


def events_of(*kinds: str) -> DagBuilder:
    """A graph with a source of events, and a node for each kind of them: `bids`, `auctions`."""
    columns = [(TIME, pa.int64()), ("dateTime", INSTANT), *((k, _STRUCTS[k]) for k in kinds)]
    builder = DagBuilder().source("events", pa.schema(columns))
    for kind in kinds:
        name = "people" if kind == "person" else f"{kind}s"
        builder.stateless_operator(name, _only(kind)).connect("events", name)
    return builder


def columns_of(kind: str) -> pa.Schema:
    """The columns of events of one kind, as a stream of their own."""
    return pa.schema([(TIME, pa.int64()), ("dateTime", INSTANT), *_STRUCTS[kind]])


def streams_of(*kinds: str) -> DagBuilder:
    """A graph with a source for each kind of events: `people`, `auctions`, `bids`."""
    builder = DagBuilder()
    for kind in kinds:
        builder.source("people" if kind == "person" else f"{kind}s", columns_of(kind))
    return builder


def then(builder: DagBuilder, after: str, **steps: OperatorSpec) -> DagBuilder:
    """A chain of operators; the last one feeds the sink `out`."""
    for name, spec in steps.items():
        if spec.key is None:
            builder.stateless_operator(name, spec)
        else:
            builder.operator(name, spec)
        builder.connect(after, name)
        after = name
    return builder.sink_for(after, "out")


def picked(names: str, **others: str) -> Project:
    """Columns under their own names, then others under new names."""
    return Project({name: name for name in names.split()} | others)


def joined(builder: DagBuilder, left: str, right: str, join: OperatorSpec) -> DagBuilder:
    """Add a node `both` that joins two others."""
    return builder.operator("both", join).connect(left, "both").connect(right, "both")
