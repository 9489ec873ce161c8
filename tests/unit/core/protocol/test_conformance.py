"""What timely dataflow recorded, judged by both checkers."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from capstan.core.protocol import StreamChecker, check_all, read_transcript, transcript_minimum
from capstan.core.times import Antichain, MutableAntichain
from tests.support.conformance_cases import CASES, CONFORMANCE, MUTANTS, RELEASES
from tests.support.reference_checker import check


def reference(items, minimum):
    return check(items, minimum)


def incremental(items, minimum):
    return check_all(StreamChecker(minimum), items)


@cache
def recorded(path, minimum_text, worker, release):
    with path.open("rb") as lines:
        return tuple(read_transcript(lines, json.loads(minimum_text), worker, release))


def judged(checker, path, minimum, worker=None, release=None):
    items = recorded(path, json.dumps(minimum), worker, release)
    return checker(items, transcript_minimum(minimum))


def as_written(time):
    return time[0] if len(time) == 1 else list(time)


def listed(holdings):
    return [[as_written(time), count] for time, count in holdings]


def offending(detail):
    """The time that breaks a rule, as the words about it tell; None where they do not."""
    actual = re.match(r"(?:message at )?(\[.*?\]|-?\d+)", detail or "")
    return None if actual is None else actual[1]


def streams():
    for case in CASES:
        expected = json.loads((CONFORMANCE / case / "expected.json").read_text(encoding="utf-8"))
        for stream in expected["streams"]:
            yield pytest.param(case, expected["minimum"], stream, id=f"{case}-{stream['worker']}")


def test_nothing_is_left_out():
    assert len(CASES) >= 16 + 26
    assert len(MUTANTS) >= 136 + 224
    # The time is told of most that a time breaks.
    reported = [m for m in MUTANTS if m["expected"]["rule"] in ("increment", "negative", "message")]
    assert sum(offending(m["expected"]["detail"]) is not None for m in reported) > 50


@pytest.mark.parametrize("checker", [reference, incremental])
@pytest.mark.parametrize(("case", "minimum", "stream"), list(streams()))
def test_recordings_are_valid_and_end_as_they_did(checker, case, minimum, stream):
    worker = stream["worker"]
    path, release = CONFORMANCE / case / f"worker-{worker}.jsonl", RELEASES[case.split("/")[0]]
    verdict = judged(checker, path, minimum, worker, release)
    assert verdict.valid
    assert verdict.events == stream["events"]
    assert verdict.records == stream["records"]
    assert listed(verdict.holdings) == stream["final_holdings"]
    assert [as_written(time) for time in verdict.frontier] == stream["final_frontier"]
    assert verdict.closed == stream["closed"]


@pytest.mark.parametrize("case", CASES)
def test_all_recordings_of_a_run_add_up(case):
    expected = json.loads((CONFORMANCE / case / "expected.json").read_text(encoding="utf-8"))
    together = MutableAntichain()
    for stream in expected["streams"]:
        path = CONFORMANCE / case / f"worker-{stream['worker']}.jsonl"
        verdict = judged(incremental, path, expected["minimum"], stream["worker"])
        together.update(verdict.holdings)
    assert listed(together.items()) == expected["final_holdings"]
    assert [as_written(time) for time in together.frontier] == expected["final_frontier"]


@pytest.mark.parametrize("declared", [False, True], ids=["found", "declared"])
@pytest.mark.parametrize("checker", [reference, incremental])
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["file"])
def test_variants_are_judged_as_expected(checker, mutant, declared):
    expected, folder = mutant["expected"], mutant["folder"]
    release = RELEASES[folder] if declared else None
    path = CONFORMANCE / folder / "mutants" / mutant["file"]
    verdict = judged(checker, path, mutant["minimum"], release=release)
    violation = verdict.violation
    assert verdict.valid == expected["valid"]
    assert (violation.seq if violation else None) == expected["first_violation_seq"]
    assert (violation.rule if violation else None) == expected["rule"]
    assert verdict.events == expected["events"]
    assert verdict.records == expected["records"]
    assert listed(verdict.holdings) == expected["holdings"]
    assert verdict.frontier == Antichain.of(
        time if isinstance(time, list) else (time,) for time in expected["frontier"]
    )
    assert verdict.closed == expected["closed"]
    if violation and violation.time is not None:
        assert violation.held == verdict.holdings
        assert offending(expected["detail"]) in (None, str(as_written(violation.time)))
