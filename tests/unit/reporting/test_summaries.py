"""What a certificate says on one line."""

from __future__ import annotations

from dataclasses import replace

from capstan.audit.result import Audit, EngineSample, InputSample
from capstan.core.times import Kind, TimeType
from capstan.reporting.summaries import audit_text

EVENT = TimeType.of(event=Kind.TIMESTAMP)


def test_an_audit_says_what_it_has_compared_only_in_part() -> None:
    times = {"since": "2024-05-01", "until": "2024-05-02"}
    audit = Audit("pipeline", True, 1200, 0, (), 1000, {})
    sampled = replace(
        audit, engine=EngineSample(40, times, 0.02), inputs=(InputSample("bids", times, 0.02),)
    )
    whole, part = (audit_text(each.to_json(EVENT), str) for each in (audit, sampled))
    assert whole == "passed (pipeline, 1200 cells)"
    assert part == (
        "passed (pipeline, 1200 cells; 40 of them also by the engine; a share of 0.02 of the "
        "records of bids, all counted)"
    )
