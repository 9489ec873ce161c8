"""Aggregates of floats that count as one, and of types that Arrow has no aggregate of."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from capstan.pipeline import END, TIME, DagBuilder, DagExecutor, Event, KeyedAggregate
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.errors import SchemaMismatch
from capstan.pipeline.operators import (
    SessionWindow,
    TopN,
    Window,
    count_distinct,
    count_of,
    first_of,
    last_of,
    max_of,
    min_of,
)

OPERATORS = {
    "window": lambda made: Window.tumbling(100, made, by=["k"]),
    "session": lambda made: SessionWindow(50, made, by=("k",)),
    "key": lambda made: KeyedAggregate(made, ("k",)),
    "steps": lambda made: KeyedAggregate(made, ("k",), every=100),
}
EACH = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
# Zeros and NaNs of either sign, a NaN with something in it, and a number.
FLOATS = {
    pa.float64(): ("<q", "<d", [0, -(2**63), 0x7FF8 << 48, -0x8 << 48, 0x7FF80000DEADBEEF]),
    pa.float32(): ("<i", "<f", [0, -(2**31), 0x7FC0 << 16, -0x40 << 16, 0x7FC0BEEF]),
}


def executor_of(spec, kind):
    schema = pa.schema([("k", pa.int64()), ("v", kind), (TIME, pa.int64())])
    builder = DagBuilder().source("s", schema).operator("op", spec).connect("s", "op")
    return DagExecutor.from_dag(builder.sink_for("op", "out").build())


def put(executor, values, time=1):
    columns = [pa.array([1] * len(values)), values, pa.array([time] * len(values))]
    executor.process_event("s", Event(time, pa.record_batch(columns, ["k", "v", TIME])))


def finished(executor):
    executor.process_watermark("s", END)
    ((row,),) = (e.batch.to_pylist() for e in executor.take_sink_outputs("out"))
    return row


def floats_of(kind):
    whole, form, bits = FLOATS[kind]
    values = b"".join(struct.pack(whole, bit) for bit in bits) + struct.pack(form, 1.0)
    return pa.Array.from_buffers(kind, len(bits) + 1, [None, pa.py_buffer(values)])


@EACH
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_zeros_and_nans_are_one_value_each_whatever_their_bits(operator, kind):
    values = floats_of(kind)
    nulls = pa.nulls(1, kind)
    for cut in (0, 1, 3):
        executor = executor_of(operator((count_distinct("v", "n"),)), kind)
        for part in (values.slice(cut), pa.concat_arrays([nulls, values.slice(0, cut)])):
            put(executor, part)
        assert finished(executor)["n"] == 3


def test_a_state_that_tells_nans_apart_is_gone_on_from():
    spec = KeyedAggregate((count_distinct("v", "n"),), ("k",))
    values = floats_of(pa.float64())
    executor = executor_of(spec, pa.float64())
    executor.process_watermark("s", 0)
    put(executor, values)
    executor.process_watermark("s", 2)
    kept = executor.checkpoint()
    node = kept.nodes["op"]
    rows, known, pairs = tables_from_bytes(node.state.data)
    assert pairs.num_rows == 3
    pairs = pa.table({"k": pa.array([1] * len(values)), "v": values}).cast(pairs.schema)
    state = replace(node.state, data=tables_to_bytes([rows, known, pairs]))
    executor.restore(replace(kept, nodes={**kept.nodes, "op": replace(node, state=state)}))
    put(executor, values, time=3)
    assert finished(executor)["n"] == 3


@EACH
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_extremes_of_durations(operator, unit):
    kind = pa.duration(unit)
    made = [
        min_of("v"),
        max_of("v"),
        first_of("v"),
        last_of("v"),
        count_of("v"),
        count_distinct("v"),
    ]
    for aggregates in (made, made[:2], [*made[:2], made[4]]):
        executor = executor_of(operator(tuple(aggregates)), kind)
        put(executor, pa.array([7, None, -5], kind))
        put(executor, pa.array([3], kind), time=2)
        row = finished(executor)
        least, most, end = (pa.scalar(n, kind).as_py() for n in (-5, 7, 3))
        assert (row["min_v"], row["max_v"]) == (least, most)
        assert row.get("last_v", end) == end
        assert row.get("count_v", 3) == row.get("count_distinct_v", 3) == 3
    assert unit == "ns" or isinstance(row["min_v"], timedelta)


@EACH
@pytest.mark.parametrize("make", [min_of, max_of, first_of])
@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(5, 2), pa.float16()], ids=str)
def test_columns_without_order_are_refused_by_the_build(operator, make, kind):
    with pytest.raises(SchemaMismatch, match="rows cannot be ordered by v"):
        executor_of(operator((make("v"),)), kind)


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(5, 2)], ids=str)
def test_rows_are_not_ordered_by_short_decimals(kind):
    with pytest.raises(SchemaMismatch, match="rows cannot be ordered by v"):
        executor_of(TopN(1, (("v", "ascending"),)), kind)


@EACH
@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(),
        pa.int8(),
        pa.uint64(),
        pa.float32(),
        pa.decimal128(5, 2),
        pa.decimal256(50, 2),
        pa.date32(),
        pa.time64("us"),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.string(),
        pa.binary(),
        pa.large_string(),
    ],
    ids=str,
)
def test_whatever_a_build_takes_runs(operator, kind):
    made = (min_of("v"), max_of("v"), first_of("v"), last_of("v"), count_distinct("v"))
    for aggregates in (made, made[:2]):
        executor = executor_of(operator(aggregates), kind)
        put(executor, pa.nulls(2, kind))
        assert finished(executor)["min_v"] is None
