"""A stream of many micro-batches costs at its end what it cost at its start."""

from __future__ import annotations

import pytest

from tests.bench.soak import COUNTED, MOST, Soak, grown

pytestmark = pytest.mark.nightly


def test_what_a_stage_costs_does_not_grow_with_the_tape(spark, tmp_path) -> None:
    stages = Soak(spark, tmp_path, 150).stages()
    assert grown(stages) == []
    for name in (*COUNTED, *MOST):
        assert all(getattr(stage, name) > 0 for stage in stages), name
