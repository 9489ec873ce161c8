"""Laws of sums: they are exact or fail, whatever batches, checkpoints and neighbours there are."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.pipeline import END, TIME, DagBuilder, DagExecutor, Event, KeyedAggregate
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.operators import SessionWindow, Window, mean_of, sum_of
from capstan.pipeline.operators.exact_sums import summable

OPERATORS = {
    "window": lambda made: Window.tumbling(100, made, by=["k"]),
    "sliding": lambda made: Window.sliding(200, 100, made, by=["k"]),
    "session": lambda made: SessionWindow(50, made, by=("k",)),
    "key": lambda made: KeyedAggregate(made, ("k",)),
    "steps": lambda made: KeyedAggregate(made, ("k",), every=100),
}
TYPES = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "int8": pa.int8(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,18)": pa.decimal128(38, 18),
    "decimal(20,2)": pa.decimal128(20, 2),
}
few = settings(max_examples=max(1, settings.default.max_examples // 4))


def bounds_of(kind):
    """The least and the greatest value, in units of the last place."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def values_of(kind):
    least, most = bounds_of(kind)
    ends = st.sampled_from([least, most, most - 1, 0, 1])
    return ends | st.integers(least, most)


def array_of(values, kind):
    if pa.types.is_decimal(kind):
        with localcontext(prec=80):
            return pa.array(
                [v if v is None else Decimal(v).scaleb(-kind.scale) for v in values], kind
            )
    return pa.array(values, kind)


def batches_of(kind):
    """Batches of values, and None where a checkpoint is taken and put back."""
    values = st.lists(values_of(kind) | st.none(), min_size=1, max_size=4)
    return st.lists(values | st.none(), min_size=1, max_size=6)


def came_out(spec, kind, batches):
    """What comes of batches whose rows have one key and one time, without repeats."""
    schema = pa.schema([("k", pa.int64()), ("v", kind), (TIME, pa.int64())])
    dag = DagBuilder().source("s", schema).operator("op", spec).connect("s", "op")
    dag = dag.sink_for("op", "out").build()
    executor = DagExecutor.from_dag(dag)
    for values in batches:
        if values is None:
            kept, executor = executor.checkpoint(), DagExecutor.from_dag(dag)
            executor.restore(kept)
            continue
        ones = pa.array([1] * len(values))
        batch = pa.record_batch([ones, array_of(values, kind), ones], schema=schema)
        executor.process_event("s", Event(1, batch))
    executor.process_watermark("s", END)
    events = executor.take_sink_outputs("out")
    return {value for event in events for value in event.batch.column("made").to_pylist()}


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@few
@given(data=st.data())
def test_a_sum_is_exact_or_fails_however_its_rows_are_cut(operator, kind, data):
    batches = data.draw(batches_of(kind))
    values = [v for batch in batches for v in batch or () if v is not None]
    spec = operator((sum_of("v", "made"),))
    result = spec.output_schema([pa.schema([("k", pa.int64()), ("v", kind)])]).field("made").type
    least, most = bounds_of(result)
    if not least <= sum(values) <= most:
        with pytest.raises(OperatorFailed, match=r"sum\(v\) is too large for"):
            came_out(spec, kind, batches)
        return
    (expected,) = array_of([sum(values) if values else None], result).to_pylist()
    rows = any(batches)
    assert came_out(spec, kind, batches) == ({expected} if rows else set())


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@few
@given(data=st.data())
def test_means_never_fail_nor_depend_on_batching(operator, kind, data):
    batches = data.draw(batches_of(kind).filter(any))
    values = [v for batch in batches for v in batch or ()]
    spec = operator((mean_of("v", "made"),))
    (made,) = came_out(spec, kind, batches)
    assert came_out(spec, kind, [values]) == {made}
    given_values = [v for v in values if v is not None]
    if not given_values:
        assert made is None
        return
    unit = 10**kind.scale if pa.types.is_decimal(kind) else 1
    expected = Fraction(sum(given_values), unit * len(given_values))
    assert made == pytest.approx(float(expected), rel=1e-12)


@given(st.sampled_from(sorted(TYPES)), st.data())
def test_a_column_is_summed_in_a_type_that_holds_the_sum(name, data):
    kind = TYPES[name]
    values = data.draw(st.lists(values_of(kind) | st.none(), max_size=20))
    cut = data.draw(st.integers(0, len(values)))
    column = pa.chunked_array([array_of(values, kind).slice(cut), array_of(values, kind)], kind)
    total = pc.sum(summable(column)).as_py() or 0
    with localcontext(prec=80):
        exact = sum(v for v in column.to_pylist() if v is not None)
        assert total == exact
