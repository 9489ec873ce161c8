"""Sums that are larger on the way than their result, and the states that they are kept in."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from capstan.pipeline import END, TIME, DagBuilder, DagExecutor, Event, KeyedAggregate
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.errors import OperatorFailed, RestoreFailed
from capstan.pipeline.operators import SessionWindow, Window, count_rows, mean_of, min_of, sum_of
from capstan.pipeline.operators.exact_sums import summable

SUMS = (sum_of("v"), mean_of("v"))
# By operator: with aggregates, the version before its sums became wide, and the one since.
OPERATORS = {
    "window": (lambda made: Window.tumbling(100, made, by=["k"]), 1, 2),
    "session": (lambda made: SessionWindow(50, made, by=("k",)), 2, 3),
    "key": (lambda made: KeyedAggregate(made, ("k",)), 1, 2),
}
EACH = pytest.mark.parametrize(("operator", "before", "now"), OPERATORS.values(), ids=OPERATORS)
NARROW = {pa.decimal128(38, 0): pa.int64(), pa.decimal256(76, 18): pa.decimal128(38, 18)}


def executor_of(spec, kind):
    schema = pa.schema([("k", pa.int64()), ("v", kind), (TIME, pa.int64())])
    builder = DagBuilder().source("s", schema).operator("op", spec).connect("s", "op")
    return DagExecutor.from_dag(builder.sink_for("op", "out").build())


def put(executor, kind, *values):
    ones = pa.array([1] * len(values), pa.int64())
    batch = pa.record_batch([ones, pa.array(values, kind), ones], ["k", "v", TIME])
    executor.process_event("s", Event(1, batch))


def finished(executor):
    executor.process_watermark("s", END)
    ((row,),) = (e.batch.to_pylist() for e in executor.take_sink_outputs("out"))
    return row


def as_before(checkpoint, version):
    """The checkpoint as it would be with narrow sums."""
    node = checkpoint.nodes["op"]
    tables = []
    for table in tables_from_bytes(node.state.data):
        kinds = [
            NARROW.get(f.type, f.type) if f.name.startswith("#") else f.type for f in table.schema
        ]
        fields = [f.with_type(kind) for f, kind in zip(table.schema, kinds, strict=True)]
        tables.append(table.cast(pa.schema(fields)))
    data = tables_to_bytes(tables)
    assert data != node.state.data
    state = replace(node.state, version=version, data=data)
    return replace(checkpoint, nodes={**checkpoint.nodes, "op": replace(node, state=state)})


@EACH
@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(38, 18)], ids=str)
def test_a_state_with_narrow_sums_is_gone_on_from(operator, before, now, kind):
    executor = executor_of(operator(SUMS), kind)
    put(executor, kind, 5, 6)
    kept = executor.checkpoint()
    assert kept.nodes["op"].state.version == now
    other = executor_of(operator(SUMS), kind)
    other.restore(as_before(kept, before))
    put(other, kind, 7)
    row = finished(other)
    assert (row["sum_v"], row["mean_v"]) == (18, 6.0)


@EACH
def test_states_have_one_form_whatever_the_sums_are(operator, before, now):
    schemas = []
    for values in ([1], [2**63 - 1, 2**63 - 1]):
        executor = executor_of(operator(SUMS), pa.int64())
        put(executor, pa.int64(), *values)
        kept = executor.checkpoint().nodes["op"].state
        schemas.append([table.schema for table in tables_from_bytes(kept.data)])
    assert schemas[0] == schemas[1]


@EACH
def test_states_without_such_sums_have_the_form_that_they_had(operator, before, now):
    for made in ((count_rows(), min_of("v")), (sum_of("v"), mean_of("v"))):
        executor = executor_of(operator(made), pa.decimal128(18, 2))
        put(executor, pa.decimal128(18, 2), Decimal("0.10"))
        assert executor.checkpoint().nodes["op"].state.version == before


@EACH
def test_a_state_of_a_version_to_come_is_refused(operator, before, now):
    executor = executor_of(operator(SUMS), pa.int64())
    put(executor, pa.int64(), 5)
    kept = executor.checkpoint()
    with pytest.raises(RestoreFailed, match=f"version {now + 1}"):
        executor.restore(as_before(kept, now + 1))


@EACH
def test_decimals_do_not_wrap_around(operator, before, now):
    kind = pa.decimal128(38, 18)
    executor = executor_of(operator((sum_of("v"),)), kind)
    put(executor, kind, Decimal("99999999999999999999"), Decimal("99999999999999999999"))
    with pytest.raises(OperatorFailed, match=r"sum\(v\) is too large for decimal128\(38, 18\)"):
        finished(executor)
    executor = executor_of(operator((mean_of("v"),)), kind)
    put(executor, kind, Decimal("99999999999999999999"), Decimal("99999999999999999999"))
    assert finished(executor)["mean_v"] == 1e20


@EACH
def test_a_mean_of_many_moments_is_one_of_them(operator, before, now):
    executor = executor_of(operator((mean_of("v"),)), pa.int64())
    for _ in range(2):
        put(executor, pa.int64(), *[1_700_000_000_000_000] * 3000)
    assert finished(executor)["mean_v"] == 1.7e15


def test_sums_of_decimals_handle_nulls_and_slices():
    kind = pa.decimal128(38, 0)
    large = pa.array([Decimal(9) * 10**37, None, Decimal(1), None], kind)
    assert summable(pa.chunked_array([large])).type == pa.decimal256(76, 0)
    assert summable(pa.chunked_array([large.slice(2)])).type == kind
    assert summable(pa.chunked_array([], kind)).type == kind
    assert summable(pa.chunked_array([pa.nulls(3, kind)])).type == kind
