"""The stretch of times whose rows the engine computes again."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from capstan.replay.target.engine_sample import stretch

counts = st.dictionaries(st.integers(-9, 60), st.integers(1, 9), min_size=1)
shares = st.floats(0, 1, exclude_min=True)


@given(counts, shares, st.text())
def test_it_has_the_share_and_no_more_times_than_that_takes(
    records: dict[int, int], share: float, identity: str
) -> None:
    first, last = stretch(records, share, identity)
    inside = [records[time] for time in sorted(records) if first <= time <= last]
    wanted = Fraction(share) * sum(records.values())
    assert sum(inside) >= wanted
    assert sum(inside[1:-1]) <= wanted


@given(st.dictionaries(st.integers(-9, 60), st.integers(1, 5), min_size=1, max_size=8), shares)
def test_each_time_can_be_chosen(records: dict[int, int], share: float) -> None:
    runs = [stretch(records, share, str(n)) for n in range(800)]
    assert all(any(first <= time <= last for first, last in runs) for time in records)
