"""Audit results and the JSON in which certificates and runs store them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.audit.result import Audit, CheckResult, Finding, Near
from capstan.core.times import Coordinate, Kind, TimeType
from capstan.errors import CheckFailedError

HOURLY = TimeType((Coordinate.of("event", Kind.TIMESTAMP),))
BITEMPORAL = TimeType((Coordinate.of("epoch", Kind.BIGINT), Coordinate.of("event", Kind.TIMESTAMP)))
HOUR = 3_600_000_000
BEYOND_9999 = 300_000_000_000_000_000
TOTALS = {"missing": 1, "extra": 0, "changed": 2, "tape": 1}

COPY = Audit("copy", True, 12, 0, (), 25, {"missing": 0, "extra": 0, "changed": 0, "tape": 0})
SHARED = Audit(
    "shared-columns",
    False,
    7,
    2,
    (
        Finding(
            1,
            (3, HOUR),
            "changed",
            {"records": 2, "fingerprint": [5, -6]},
            {"records": 2, "fingerprint": [5, -7]},
            "tape",
        ),
        Finding(None, (None, HOUR), "missing", {"id": 7, "note": None}, None),
        Finding(0, (4, BEYOND_9999), "extra", None, {"id": 9, "note": "ü"}),
    ),
    24,
    TOTALS,
    first="worker 1, epoch 3, event 1970-01-01T01:00:00Z",
)
TRANSFORM = Audit(
    "transform",
    False,
    9,
    0,
    (),
    31,
    {"missing": 0, "extra": 0, "changed": 0, "tape": 0},
    checks=(
        CheckResult("positive", "amount > 0", 2, (
            Finding(2, (HOUR,), "check", None, {"amount": -1.5}, check="positive"),
            Finding(None, (None,), "check", None, {"amount": 0.0}, check="positive"),
        )),
        CheckResult("unique_id", "unique: id", 0),
    ),
    near=Near(("mean", "total"), 1e-09, 3, ("", "median")),
)  # fmt: skip

STORED = Path(__file__).with_name("golden_audits.json").read_text(encoding="utf-8").splitlines()
"""The audits as stored by earlier versions."""

CASES = list(zip((HOURLY, BITEMPORAL, HOURLY), (COPY, SHARED, TRANSFORM), STORED, strict=True))


@pytest.mark.parametrize(("time_type", "audit", "stored"), CASES)
def test_the_stored_json_is_unchanged(time_type: TimeType, audit: Audit, stored: str) -> None:
    assert json.dumps(audit.to_json(time_type)) == stored


@pytest.mark.parametrize(
    ("kind", "staged", "tape", "hint"),
    [
        ("transform", True, 0, "in another order"),
        ("pipeline", True, 0, "in another order"),
        ("transform", False, 0, "replay the range again"),
        ("copy", True, 0, "replay the range again"),
        ("transform", True, 1, "verify the tape"),
    ],
)
def test_the_hint_of_a_failed_audit(kind: str, staged: bool, tape: int, hint: str) -> None:
    totals = {"missing": 0, "extra": 0, "changed": 2, "tape": tape}
    audit = Audit(kind, False, 7, 2, (), 24, totals, first="worker 1")

    with pytest.raises(CheckFailedError, match="2 of 7 cells differ") as failed:
        audit.require_passed("it", staged=staged)

    assert hint in failed.value.hint
