"""Batches of many rows out of many small ones."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from capstan.tape.scan import in_portions


@given(st.lists(st.integers(0, 7)), st.integers(1, 10))
def test_portions_have_the_same_rows_and_no_fewer_than_asked_for(
    sizes: list[int], rows: int
) -> None:
    numbers = iter(range(sum(sizes)))
    batches = [
        pa.RecordBatch.from_pydict(
            {"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}
        )
        for size in sizes
    ]
    found = list(in_portions(batches, rows))
    assert [n for batch in found for n in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= rows for batch in found[:-1])
    assert all(batch.num_rows for batch in found)
