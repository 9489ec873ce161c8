"""Live programs of both releases of timely, to tapes and back, over files and sockets."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from capstan.core.protocol import Release
from capstan.core.times import Antichain
from capstan.interop.transfer.export_files import form_of
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.listen import ListenRequest, ListenResult, listen
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.interop.transfer.serve import Address, serve
from capstan.storage.delta import delta
from capstan.storage.tape.tape import open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.spark.test_exchange_stamps import exported, files
from tests.support.socket_receivers import adjacent
from tests.support.timely_programs import HAS_CARGO, TYPES, Shown, shown, start

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HAS_CARGO, reason="cargo builds programs of timely"),
]
CASES = [(Release.V032, kind) for kind in TYPES] + [(Release.V031, "grid"), (Release.V031, "pairs")]


def form(kind: str, release: Release) -> Form:
    return Form.from_options(
        Format.TIMELY, time_type=TYPES[kind], record_type="u64", timely=release
    )


def on_tape(spark: SparkSession, tape: Tape) -> Counter[tuple[str, int]]:
    """The records of a tape by stamp, as the programs print them."""
    stamp = "coalesce(stamp, array(time))" if tape.stamped else "array(time)"
    rows = delta.load(spark, tape.paths.records).selectExpr(f"to_json({stamp}) AS s", "data.value")
    found: Counter[tuple[str, int]] = Counter()
    for row in rows.collect():
        times = [list(time.values()) for time in json.loads(row["s"])]
        bare = [time[0] if len(time) == 1 else time for time in times]
        found[json.dumps(bare, separators=(",", ":")), row["value"]] += 1
    return found


def require_same(got: Shown, sent: Counter[tuple[str, int]], tape: Tape, workers: int) -> None:
    """Check that a replay has all records, and that each worker's frontiers advance to the end."""
    assert got.records == sent
    assert sorted(got.frontiers) == list(range(workers))
    order = tape.time_type.order
    for seen in got.frontiers.values():
        chain = [
            Antichain.of((t if isinstance(t, list) else (t,) for t in times), order)
            for times in seen
        ]
        assert chain[-1].is_empty
        assert all(one.dominates(other) for one, other in pairwise(chain))


@pytest.mark.parametrize(("release", "kind"), CASES)
def test_files_of_a_live_program_come_back(
    spark: SparkSession, lake: Lake, tmp_path: Path, release: Release, kind: str
) -> None:
    place = tmp_path / "sent"
    place.mkdir()
    sent = shown(start(release, "capture", kind, place, "-w", 2)).records
    assert sent.total() > 50
    several = any(len(json.loads(stamp)) > 1 for stamp, _ in sent)
    # Of pairs, which are in one row, a set of capabilities keeps the least alone.
    assert several == (release is Release.V032 and kind != "pairs")
    imported = form(kind, release)
    import_recordings(spark, lake, "s", find_recordings(place, Format.TIMELY), imported)
    tape = open_tape(lake, "s", stamps=True)
    assert verify(spark, lake, tape, deep=True).valid
    assert on_tape(spark, tape) == sent
    assert exported(spark, lake, tape, tmp_path / "out", form_of(tape, Format.TIMELY)) == files(
        place, Format.TIMELY
    )
    for workers in (1, 3):
        again = start(release, "replay", kind, tmp_path / "out", 2, "-w", workers)
        require_same(shown(again), sent, tape, workers)


def listened(
    spark: SparkSession, lake: Lake, wanted: Form, release: Release, kind: str, senders: int
) -> tuple[ListenResult, Shown]:
    """What a listener finds of a program, and what this has sent."""
    with adjacent(senders) as taken:
        port = taken[0].getsockname()[1]
    running: list[subprocess.Popen[str]] = []

    def told(point: str, _: object) -> None:
        if point == "listen.ready":
            running.append(start(release, "capture", kind, port, "-w", senders))

    request = ListenRequest("s", senders, wanted, port, idle=60)
    with instrumentation.subscribe(told):
        found = listen(spark, lake, request)
    # Who is shut out may end with an error.
    return found, shown(running[0], succeeds=wanted.release is release)


@pytest.mark.parametrize(("release", "kind"), CASES)
def test_sockets_of_a_live_program_reach_another_number_of_workers(
    spark: SparkSession, lake: Lake, release: Release, kind: str
) -> None:
    found, sent = listened(spark, lake, form(kind, release), release, kind, 2)
    assert not found.refused, found.faults
    tape = open_tape(lake, "s", stamps=True)
    assert verify(spark, lake, tape, deep=True).valid
    assert on_tape(spark, tape) == sent.records
    with adjacent(2) as taken:
        port = taken[0].getsockname()[1]
    receiver = start(release, "replay", kind, port, 2, "-w", 3)
    to = Address("127.0.0.1", port)
    serve(spark, lake, tape, form_of(tape, Format.TIMELY), to, workers=(0, 1), timeout=60)
    require_same(shown(receiver), sent.records, tape, 3)


@pytest.mark.parametrize("kind", TYPES)
def test_a_live_sender_of_0_31_is_refused_by_a_listener_of_0_32(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    found, sent = listened(spark, lake, form(kind, Release.V032), Release.V031, kind, 1)
    assert found.refused == (0,)
    assert "timely 0.3" in found.faults[0]
    tape = open_tape(lake, "s", stamps=True)
    assert not on_tape(spark, tape) - sent.records
