"""The benchmark of keyed state asks others the same over the same rows."""

from __future__ import annotations

import pytest

from tests.bench.keyed_state import (
    Work,
    by_record,
    in_batches,
    pairs_of,
    run,
    run_bytewax,
    sessions,
    sums_of,
    sums_of_bytewax,
)

WORK = Work(3_000, 100)


@pytest.mark.parametrize(
    ("spec", "operator", "sums"),
    [
        (in_batches, "reduce_final", WORK.keys),
        (by_record, "stateful_map", WORK.rows),
        # Most sessions have a row or two.
        (sessions, "fold_window", 1_800),
    ],
)
def test_bytewax_comes_to_the_same(spec, operator, sums):
    rows = WORK.made()
    actual = sums_of(run(spec(WORK), rows))
    assert actual == sums_of_bytewax(run_bytewax(operator, pairs_of(rows), WORK.gap))
    assert actual.total() >= sums


def test_as_many_rows_make_a_session_whatever_their_keys():
    few, many = (
        sums_of(run(sessions(work), work.made())).total() / work.rows
        for work in (Work(20_000, 100), Work(20_000, 1_000))
    )
    assert few == pytest.approx(many, rel=0.05)
