"""Recordings whose times are pairs: onto tapes, off them, and into tables."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from capstan.cli import main
from capstan.core.protocol import Event, Messages, Progress, Release, StreamChecker, check_all
from capstan.core.times import PAIR, PRODUCT, Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.interop.timely import EventTypes, encode_event
from capstan.interop.transfer.export_files import form_of
from capstan.interop.transfer.listen import ListenRequest
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Form, Format
from capstan.interop.transfer.serve import Address, serve
from capstan.replay.planning.request import Request
from capstan.replay.run import replay, rollback
from capstan.storage.delta import delta
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.verify import verify
from capstan.verify.event_fold import ResumePoint
from capstan.verify.run import check_events, events_to_check
from tests.spark.test_exchange_stamps import CONFIG, by_stamp, exported, files, heard, put
from tests.support.socket_receivers import receivers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

_START = ResumePoint()
TYPES = EventTypes.of("(u64,u64)", "u64")


def recording(random: Random, *, stamped: bool) -> list[Event]:
    """A legal recording: times after the held ones as a dictionary has them, and closed at last."""
    held, events = Counter([Time((0, 0))]), list[Event]()

    def later() -> Time:
        outer, inner = random.choice(list(held))
        step = random.randrange(3)
        return Time((outer + step, random.randrange(4) + (0 if step else inner)))

    for _ in range(30):
        if random.random() < 0.6:
            stamp = sorted(later() for _ in range(random.choice([1, 1, 2, 3]) if stamped else 1))
            data = tuple(random.randrange(1000) for _ in range(random.randrange(4)))
            events.append(Messages(tuple(stamp), len(data), data))
            continue
        came = [later() for _ in range(random.randrange(1, 3))]
        gone = random.sample(list(held.elements()), min(len(came), held.total()))
        held.update(came)
        held.subtract(gone)
        held = +held
        events.append(Progress.of([*((t, 1) for t in came), *((t, -1) for t in gone)]))
    return [*events, Progress.of([(time, -n) for time, n in held.items()])]


def recordings(folder: Path, seed: int, *, stamped: bool = False) -> list[list[Event]]:
    """Two recordings as frames in a folder."""
    folder.mkdir()
    random = Random(seed)
    made = [recording(random, stamped=stamped) for _ in range(2)]
    release = Release.V032 if stamped else Release.V031
    for worker, events in enumerate(made):
        frames = b"".join(encode_event(TYPES, event, release) for event in events)
        (folder / f"worker-{worker}.bin").write_bytes(frames)
    case = {**TYPES.to_json(), "timely": str(release)}
    (folder / "case.json").write_text(json.dumps(case))
    return made


def counted(made: list[list[Event]]) -> Counter[tuple[str, int]]:
    """The records of recordings by stamp."""
    sent = [event for events in made for event in events if isinstance(event, Messages)]
    found: Counter[tuple[str, int]] = Counter()
    for event in sent:
        stamp = ",".join(f'{{"t0":{a},"t1":{b}}}' for a, b in event.stamp)
        found.update((f"[{stamp}]", value) for value in event.data or ())
    return found


@pytest.mark.parametrize("stamped", [False, True])
def test_pairs_come_out_as_they_came_in(
    spark: SparkSession, lake: Lake, tmp_path: Path, stamped: bool
) -> None:
    made = recordings(tmp_path / "sent", 1 + stamped, stamped=stamped)
    # In the order of products, the same recordings are not legal.
    assert not check_all(StreamChecker((0, 0)), made[0]).valid
    put(spark, lake, "s", tmp_path / "sent", Format.TIMELY)
    assert put(spark, lake, "s", tmp_path / "sent", Format.TIMELY).unchanged
    tape = open_tape(lake, "s", stamps=True)
    assert format_of(tape.paths.events) == 4
    assert tape.time_type.order == PAIR
    verdicts = verify(spark, lake, tape, deep=True).raise_for_violations().workers
    cut = newest_cut(tape)
    rows = events_to_check(spark, tape, cut, None, -1)
    on_spark = check_events(rows, tape.time_type, {0: _START, 1: _START})
    for worker, events in enumerate(made):
        pure = check_all(StreamChecker((0, 0), order=PAIR), events)
        assert pure.valid
        for found in (verdicts[worker], on_spark[worker]):
            expected = (pure.events, pure.records, pure.holdings, None)
            assert (found.events, found.records, found.holdings, found.violation) == expected
    frames = exported(spark, lake, tape, tmp_path / "frames", form_of(tape, Format.TIMELY))
    assert frames == files(tmp_path / "sent", Format.TIMELY)
    lines = exported(spark, lake, tape, tmp_path / "lines", form_of(tape, Format.JSONL))
    put(spark, lake, "text", tmp_path / "lines", Format.JSONL)
    text = open_tape(lake, "text", stamps=True)
    assert text.time_type == tape.time_type
    assert exported(spark, lake, text, tmp_path / "again", form_of(text, Format.JSONL)) == lines
    assert by_stamp(spark, text) == by_stamp(spark, tape) == counted(made)


def copied(spark: SparkSession, lake: Lake, table: str) -> Counter[tuple[tuple[int, int], int]]:
    rows = delta.load(spark, lake.table(table)).collect()
    return Counter((tuple(row["_time"]), row["value"]) for row in rows)


def least(made: list[list[Event]]) -> Counter[tuple[tuple[int, int], int]]:
    """The records of recordings by the least time of their stamp, where a copy has them."""
    sent = [event for events in made for event in events if isinstance(event, Messages)]
    return Counter((tuple(e.stamp[0]), value) for e in sent for value in e.data or ())


def test_ranges_of_pairs(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Ranges in turn have what one copy has, and rollbacks and audits go by the same order."""
    made = recordings(tmp_path / "sent", 3, stamped=True)
    put(spark, lake, "s", tmp_path / "sent", Format.TIMELY)
    everything = replay(spark, lake, CONFIG, Request("s", "whole")).certificate
    assert everything is not None
    expected = least(made)
    assert copied(spark, lake, "whole") == expected
    random = Random(4)
    last = max(time for time, _ in expected)
    ends = sorted({(random.randrange(last[0]), random.choice([None, 1, 2])) for _ in range(4)},
                  key=lambda end: (end[0], end[1] or 0))  # fmt: skip
    texts = [None, *(f"t0={a}" if b is None else f"[{a}, {b}]" for a, b in ends), None]
    ranges = [Request("s", "parts", since=a, until=b) for a, b in pairwise(texts)]
    random.shuffle(ranges)
    runs = [replay(spark, lake, CONFIG, each).certificate for each in ranges]
    assert copied(spark, lake, "parts") == expected
    assert sum(run.records for run in runs if run is not None) == everything.records
    assert main(["--lake", lake.root, "audit", "--against", "parts", "s"]) == 0
    # The ranges together are one: the same rows by a replay of everything stand already.
    assert replay(spark, lake, CONFIG, Request("s", "parts", since="t0=0")).unchanged is False
    assert copied(spark, lake, "parts") == expected
    done = replay(spark, lake, CONFIG, Request("s", "some", since="[1, 1]", until="[3, 1]"))
    certificate = done.certificate
    assert certificate is not None
    inside = Counter({key: n for key, n in expected.items() if (1, 1) <= key[0] < (3, 1)})
    assert copied(spark, lake, "some") == inside
    assert certificate.to_json()["since"] == [1, 1]
    assert (certificate.records, inside.total()) == (inside.total(), certificate.records)
    again = replay(spark, lake, CONFIG, Request("s", "some", since="t0=2")).certificate
    assert again is not None
    assert copied(spark, lake, "some") == Counter(
        {key: n for key, n in expected.items() if key[0] >= (1, 1)}
    )
    rollback(spark, lake, CONFIG, str(again.run))
    assert copied(spark, lake, "some") == inside
    assert main(["--lake", lake.root, "audit", str(certificate.run)]) == 0
    assert main(["--lake", lake.root, "maintain", "--all"]) == 0
    assert main(["--lake", lake.root, "verify", "s", "--deep"]) == 0
    assert copied(spark, lake, "whole") == expected
    plan = ["plan", "s", "--into", "some", "--until", "t0=2"]
    for command in (["streams"], ["show", "s"], plan, ["runs"]):
        assert main(["--lake", lake.root, *command]) == 0
    assert main(["--lake", lake.root, "plan", "s", "--into", "some", "--until", "t1=2"]) == 2


def test_streams_of_pairs_grow(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Listened to in two parts; followed, re-captured and served after each."""
    made = recordings(tmp_path / "sent", 5)
    form = Form.of_folder(tmp_path / "sent", Format.TIMELY)
    whole = [data for _, data in sorted(files(tmp_path / "sent", Format.TIMELY).items())]
    sizes = [[len(encode_event(TYPES, event, Release.V031)) for event in each] for each in made]
    ends = [list(accumulate(each))[len(each) * 2 // 3] for each in sizes]
    followed = Request("s", "followed", follow="f")
    parts = [
        {n: data[:end] for n, (data, end) in enumerate(zip(whole, ends, strict=True))},
        {n: data[end:] for n, (data, end) in enumerate(zip(whole, ends, strict=True))},
    ]
    found, recaptured = [], []
    for part in parts:
        heard(spark, lake, "s", form, part, idle=2)
        done = replay(spark, lake, CONFIG, followed).certificate
        found.append(0 if done is None else done.records)
        recaptured.append(recapture(spark, lake, RecaptureRequest("s", "copy", peers=3)).records)
    assert found == recaptured
    assert all(found)
    expected = least(made)
    assert copied(spark, lake, "followed") == expected
    tape, copy = (open_tape(lake, name, stamps=True) for name in ("s", "copy"))
    assert verify(spark, lake, copy, deep=True).valid
    assert copy.time_type == tape.time_type
    assert by_stamp(spark, copy) == by_stamp(spark, tape) == counted(made)
    # A re-capture has no types, so its transcripts state the order.
    exported(spark, lake, copy, tmp_path / "lines", form_of(copy, Format.JSONL))
    assert main(["check", str(tmp_path / "lines")]) == 0
    put(spark, lake, "text", tmp_path / "lines", Format.JSONL)
    assert open_tape(lake, "text", stamps=True).time_type == tape.time_type
    assert exported(spark, lake, tape, tmp_path / "out", form) == files(
        tmp_path / "sent", Format.TIMELY
    )
    with receivers(2) as (port, got):
        serve(spark, lake, tape, form, Address("127.0.0.1", port), workers=(0, 1))
    assert [bytes(item) for item in got] == whole


def test_a_sender_that_breaks_the_order_of_pairs_is_refused(
    spark: SparkSession, lake: Lake
) -> None:
    form = Form.from_options(Format.TIMELY, time_type="(u64,u64)", record_type="u64")
    events = [Progress.of([((1, 1), 1), ((0, 0), -1)]), Messages.of((2, 0), [7]),
              Messages.of((1, 0), [8])]  # fmt: skip
    sent = b"".join(encode_event(TYPES, event, Release.V031) for event in events)
    found = heard(spark, lake, "s", form, {0: sent})
    assert (found.events, found.records, found.refused) == (2, 1, (0,))
    assert "message" in found.faults[0]


def test_pairs_that_were_imported_as_products_are_named(
    spark: SparkSession,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recordings(tmp_path / "sent", 6)
    put(spark, lake, "s", tmp_path / "sent", Format.TIMELY)
    # A tape has one order for all parts.
    for text in ("Product<(u64,u64),u64>", "(Product<u64,u64>,u64)"):
        form = Form.from_options(Format.TIMELY, time_type=text, record_type="u64")
        with pytest.raises(InvalidRequestError, match="mix pairs and Products") as refused:
            ListenRequest("mixed", 1, form, 0)
        assert refused.value.code == "CAP-TIME-TYPE"
    # As an earlier version imported pairs: named, and never taken for what is imported now.
    events = [Progress.of([((0, 5), 1)]), Messages.of((0, 5), [1])]
    (tmp_path / "old").mkdir()
    frames = b"".join(encode_event(TYPES, event, Release.V031) for event in events)
    (tmp_path / "old" / "worker-0.bin").write_bytes(frames)
    (tmp_path / "old" / "case.json").write_text(json.dumps(TYPES.to_json()))
    with monkeypatch.context() as former:
        former.setattr(Form, "order", PRODUCT)
        put(spark, lake, "old", tmp_path / "old", Format.TIMELY)
    old = open_tape(lake, "old")
    assert (format_of(old.paths.events), old.time_type.order) == (2, PRODUCT)
    assert verify(spark, lake, old).to_json()["pairs"] == "(u64, u64)"
    assert "pairs" not in verify(spark, lake, open_tape(lake, "s", stamps=True)).to_json()
    assert main(["--lake", lake.root, "verify", "old"]) == 0
    assert "its times are (u64, u64), which the tape wrongly orders" in capsys.readouterr().out
    with pytest.raises(InvalidRequestError, match="already exists"):
        put(spark, lake, "old", tmp_path / "old", Format.TIMELY)
    form = form_of(old, Format.TIMELY)
    assert exported(spark, lake, old, tmp_path / "o", form)["worker-0.bin"] == frames


def test_a_range_of_pairs_has_the_same_times_on_spark(spark: SparkSession) -> None:
    random, grid = Random(41), [(a, b) for a in range(5) for b in range(5)]
    time_type = replace(TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT), order=PAIR)

    def bound() -> tuple[int | None, int | None]:
        first = random.choice([None, *range(5)])
        return first, None if first is None else random.choice([None, *range(5)])

    def frontier() -> Antichain | None:
        return random.choice([None, Antichain.of(random.sample(grid, random.randrange(3)), PAIR)])

    regions = [Region(Box(bound(), bound(), PAIR), frontier(), frontier()) for _ in range(40)]
    frame = spark.createDataFrame(grid, "t0 BIGINT, t1 BIGINT")
    conditions = [region_sql(time_type, region, ("t0", "t1")) for region in regions]
    for row in frame.selectExpr("t0", "t1", *conditions).collect():
        time, *kept = Time(row[:2]), *row[2:]
        assert kept == [region.contains(time) for region in regions]
