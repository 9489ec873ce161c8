"""What timely recorded, in both forms: the same events, the same bytes, the same replays."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from capstan.core.protocol import (
    Fault,
    Messages,
    Release,
    StreamChecker,
    check_all,
    transcript_minimum,
)
from capstan.core.times import Antichain, MutableAntichain, complete
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    Advanced,
    Emitted,
    EventReader,
    EventTypes,
    EventWriter,
    Frames,
    Lines,
    Replayer,
    codec_of,
    extract,
    open_recording,
    recordings_in,
    types_of,
    worker_of,
)
from tests.support.conformance_cases import CASES, CONFORMANCE, MUTANTS, RELEASES
from tests.support.reference_checker import check

STAMPED = ("timely032/s", "timely032/m")


def release(case):
    return RELEASES[case.split("/")[0]]


def frames(case):
    return Frames(types(case), release=release(case))


def lines(case, worker):
    return Lines.of(types(case), worker, release(case))


@cache
def expected(case):
    return json.loads((CONFORMANCE / case / "expected.json").read_text(encoding="utf-8"))


@cache
def types(case):
    return types_of(CONFORMANCE / case / "worker-0.bin")


@cache
def recorded(case, worker, suffix=".bin"):
    path = CONFORMANCE / case / f"worker-{worker}{suffix}"
    encoding = frames(case) if suffix == ".bin" else lines(case, None)
    with open_recording(path, encoding) as reader:
        return tuple(reader), reader.torn, reader.offset


def streams():
    for case in CASES:
        for stream in expected(case)["streams"]:
            yield pytest.param(case, stream, id=f"{case}-{stream['worker']}")


def replays():
    for case in CASES:
        # The programs of 0.31, run again with 0.32: the same streams, but for their bytes.
        again = release(case) is Release.V032 and not case.startswith(STAMPED)
        marks = (pytest.mark.rest,) if again else ()
        for number, replay in enumerate(expected(case)["replays"]):
            yield pytest.param(case, replay, id=f"{case}-{number}", marks=marks)


def as_written(case, time):
    return time[0] if types(case).time.bare else list(time)


def stamp_as_written(case, stamp):
    """The times of messages as the release states them: one, or a stamp."""
    times = [as_written(case, time) for time in stamp]
    return times if release(case) is Release.V032 else times[0]


LINES = {}


def lines_of(case, messages):
    """The lines of an event's records; remembered, since each is replayed a dozen times."""
    if id(messages) not in LINES:
        time, to_json = stamp_as_written(case, messages.stamp), types(case).record.to_json
        LINES[id(messages)] = (
            messages,
            [
                json.dumps(
                    [time, to_json(record)], separators=(",", ":"), ensure_ascii=False
                ).encode()
                for record in messages.data
            ],
        )
    return LINES[id(messages)][1]


def multiset_hash(case, emitted):
    lines = sorted(line for messages in emitted for line in lines_of(case, messages))
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def written(encoding, events):
    sink = io.BytesIO()
    with EventWriter(sink, encoding) as writer:
        for event in events:
            writer.push(event)
    return sink.getvalue()


def test_nothing_is_left_out():
    assert len(CASES) >= 16 + 26
    assert len(MUTANTS) >= 136 + 224


@pytest.mark.parametrize("case", CASES)
def test_files_are_found_by_worker(case):
    paths = recordings_in(CONFORMANCE / case, [".bin"])
    assert [worker_of(path) for path in paths] == list(range(expected(case)["workers"]))
    assert types(case).minimum_json == expected(case)["minimum"]
    assert types(case).record == codec_of(expected(case)["record_type"])
    assert EventTypes.from_json(types(case).to_json()) == types(case)


@pytest.mark.parametrize(("case", "stream"), list(streams()))
def test_both_forms_have_the_same_events(case, stream):
    worker = stream["worker"]
    events, torn, _ = recorded(case, worker)
    assert events == recorded(case, worker, ".jsonl")[0]
    file = expected(case)["files"][f"worker-{worker}.bin"]
    assert len(events) == file["whole_frames"]
    assert (torn.bytes if torn else 0) == file["trailing_bytes"]


@pytest.mark.parametrize(("case", "stream"), list(streams()))
def test_what_was_read_is_written_as_the_same_bytes(case, stream):
    worker = stream["worker"]
    events, _, whole = recorded(case, worker)
    before = (CONFORMANCE / case / f"worker-{worker}.bin").read_bytes()
    assert (
        hashlib.sha256(before).hexdigest()
        == (expected(case)["files"][f"worker-{worker}.bin"]["sha256"])
    )
    assert written(frames(case), events) == before[:whole]
    text = (CONFORMANCE / case / f"worker-{worker}.jsonl").read_bytes()
    assert written(lines(case, worker), events) == text


@pytest.mark.parametrize(("case", "stream"), list(streams()))
def test_frames_are_judged_as_timely_left_them(case, stream):
    events, _, _ = recorded(case, stream["worker"])
    verdict = check(events, types(case).minimum)
    assert verdict.valid
    assert (verdict.events, verdict.records) == (stream["events"], stream["records"])
    assert [[as_written(case, t), n] for t, n in verdict.holdings] == stream["final_holdings"]
    assert [as_written(case, time) for time in verdict.frontier] == stream["final_frontier"]
    assert verdict.closed == stream["closed"]
    messages = [event for event in events if isinstance(event, Messages)]
    assert multiset_hash(case, messages) == stream["multiset_sha256"]


@pytest.mark.parametrize("case", CASES)
def test_all_recordings_are_the_multiset(case):
    events = [e for s in expected(case)["streams"] for e in recorded(case, s["worker"])[0]]
    messages = [event for event in events if isinstance(event, Messages)]
    assert multiset_hash(case, messages) == expected(case)["multiset_sha256"]
    elements = Counter(str(len(event.stamp)) for event in messages)
    assert elements == expected(case).get("elements", {"1": len(messages)} if messages else {})
    if set(elements) - {"1"}:
        with pytest.raises(InvalidRequestError, match="CAP-STAMP"):
            extract(events)
        return
    actual = extract(events)
    if release(case) is Release.V032:
        counts = [[[as_written(case, time)], len(records)] for time, records in actual]
        assert counts == expected(case)["records_by_stamp"]
        return
    counts = [[as_written(case, time), len(records)] for time, records in actual]
    assert counts == expected(case)["records_by_time"]
    if "multiset" in expected(case):
        to_json = types(case).record.to_json
        listed = [json.dumps([as_written(case, t), to_json(r)]) for t, data in actual for r in data]
        assert sorted(listed) == sorted(map(json.dumps, expected(case)["multiset"]))


def test_where_a_file_is_torn_is_told():
    _, first, _ = recorded("timely/e2_torn_w2", 0)
    assert (first.offset, first.bytes) == (668, 13)
    assert first.missing > 0
    assert "torn at byte 681" in first.about
    _, second, _ = recorded("timely/e2_torn_w2", 1)
    assert (second.offset, second.bytes, second.missing) == (904, 5, None)
    assert "in its length: 3 bytes are missing" in second.about


def mutant_items(mutant):
    minimum = mutant["minimum"]
    declared = RELEASES[mutant["folder"]]
    with (CONFORMANCE / mutant["folder"] / "mutants" / mutant["file"]).open("rb") as file:
        encoding = Lines(minimum, worker=None, release=declared)
        return list(EventReader(file, encoding).items())


def framed(mutant, items):
    """A variant as frames, read back; None where its events have no bytes.

    What is no event has none, nor has a time that the source's type does not know, nor anything
    whose types are not known because the source is not there.
    """
    case = f"{mutant['folder']}/{mutant['source'].split('/')[0]}"
    if any(isinstance(item, Fault) for item in items) or not (CONFORMANCE / case).is_dir():
        return None
    known = EventTypes.of(types(case).time.name, types(case).record.name, mutant["minimum"])
    kinds = Frames(known, release=release(case))
    try:
        data = written(kinds, items)
    except InvalidRequestError as error:
        assert error.code == "CAP-VALUE"
        return None
    return list(EventReader(io.BytesIO(data), kinds).items())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["file"])
def test_variants_are_judged_as_expected_in_both_forms(mutant):
    minimum = transcript_minimum(mutant["minimum"])
    items = mutant_items(mutant)
    verdicts = [check(items, minimum)]
    again = framed(mutant, items)
    if again is not None:
        verdicts.append(check_all(StreamChecker(minimum), again))
    for verdict in verdicts:
        violation = verdict.violation
        assert verdict.valid == mutant["expected"]["valid"]
        assert (violation.seq if violation else None) == mutant["expected"]["first_violation_seq"]
        assert (violation.rule if violation else None) == mutant["expected"]["rule"]
        assert verdict.records == mutant["expected"]["records"]
        bare = not isinstance(mutant["minimum"], list)
        holdings = [[t[0] if bare else list(t), n] for t, n in verdict.holdings]
        assert holdings == mutant["expected"]["holdings"]


def test_most_variants_have_bytes():
    assert sum(framed(mutant, mutant_items(mutant)) is not None for mutant in MUTANTS) > 280


@pytest.mark.parametrize(("case", "replay"), list(replays()))
def test_replays_meet_those_of_timely(case, replay):
    """Any recordings on fewer, the same and more workers; all at once and in turns."""
    minimum = types(case).minimum
    sources = [recorded(case, worker)[0] for worker in replay["streams"]]
    batch = 1 if replay["reading"] == "stepwise" else None
    replayer = Replayer(sources, minimum, replay["workers"], batch)
    emitted = []
    frontiers = [[] for _ in range(replay["workers"])]
    late = 0
    for step in replayer:
        if isinstance(step, Emitted):
            if any(complete(frontiers[step.worker][-1], t) for t in step.messages.stamp):
                late += step.messages.records
            emitted.append(step.messages)
        else:
            assert isinstance(step, Advanced)
            frontiers[step.worker].append(step.frontier)
    assert replayer.done
    assert late == replay["late_records"] == 0
    # Timely's replay may lose messages without elements; ours delivers all.
    lost = replay.get("unstamped_lost", 0)
    everything = [e for events in sources for e in events if isinstance(e, Messages)]
    assert multiset_hash(case, emitted) == multiset_hash(case, everything)
    assert sum(messages.records for messages in emitted) == replay["records"] + lost
    if not lost:
        assert multiset_hash(case, emitted) == replay["multiset_sha256"]
    received = replayer.replayed
    assert [as_written(case, time) for time in received.frontier] == replay["final_frontier"]
    assert received.closed == replay["closed"]
    assert received.records == replay["records"] + lost
    if replay.get("deterministic"):
        (only,) = frontiers
        assert [[as_written(case, time) for time in item] for item in only] == (
            replay["frontiers"][0]
        )
    for number, own in enumerate(frontiers):
        mine = sources[number :: replay["workers"]]
        assert own[0] == Antichain.of([minimum] if mine else [])
        assert all(a.dominates(b) and a != b for a, b in pairwise(own))
        held = MutableAntichain()
        for events in mine:
            held.update(check(events, minimum).holdings)
        assert own[-1] == held.frontier
        assert replayer.workers[number].holdings == held.items()


def test_numbers_beyond_a_bigint_are_kept():
    events, _, _ = recorded("timely/k1_u64_max_w1", 0)
    actual = dict(extract(events))
    assert actual[2**64 - 1,] == (5, 2**64 - 6)
    assert actual[0,] == (0, 2**64 - 1)
    assert actual[2**53 + 1,] == (2, 2**64 - 3)


def test_durations_are_nanoseconds():
    events, _, _ = recorded("timely/i0_batch_logger_w2", 0)
    assert any(time > (10**9,) for time, _ in extract(events))
    assert types("timely/i0_batch_logger_w2").time.least == 12
