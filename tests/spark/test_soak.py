"""A stream of many micro-batches costs at its end what it cost at its start."""

from __future__ import annotations

import pytest

from capstan.bench.soaking import Soak

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def test_jobs_and_files_do_not_grow_with_the_tape(spark, tmp_path) -> None:
    _, first, *_, last = Soak(spark, tmp_path, 150).stages()
    for name in ("capture_jobs", "verify_jobs", "verify_files", "follow_jobs", "follow_files"):
        before, after = getattr(first, name), getattr(last, name)
        assert 0 < after <= 1.3 * before, (name, before, after)
    assert last.files <= 1.3 * first.files + 64
    assert last.bytes <= 1.3 * first.bytes
