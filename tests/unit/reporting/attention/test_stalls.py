"""Which frontiers are stalled: by what a stream declares, or by records that came all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from capstan.core.config import ProjectConfig
from capstan.reporting.attention import stalls
from capstan.reporting.attention.stalls import find_stall
from capstan.reporting.stream_view import StreamHistory, view_stream
from capstan.storage.lake import Lake
from tests.support import recorded_tapes
from tests.support.recorded_tapes import Recorded, write
from tests.support.sample_streams import little_stream

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DAY = timedelta(days=1)
STOPPED = Recorded("s", ["fast", "slow"], commits=3, slower={1: 6})
"""The slow worker stays where it begins, and the fast one goes on by six hours a commit."""


def declared(**more):
    # Two hours of lateness, and hourly times.
    stream = little_stream(Path("/nowhere"), name="s", **more)
    return ProjectConfig(Path("streams.yaml"), {"s": stream}, {}, {}, {})


def lay(root, recorded, *days):
    """A tape that was created, and then written once for each commit, so many days ago."""
    lake = Lake.at(root)
    recorded.lay(lake)
    logs = sorted(Path(lake.stream("s").events, "_delta_log").glob("*.json"))
    for log, age in zip(logs, days, strict=True):
        moment = int((NOW - age * DAY).timestamp() * 1000)
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["modificationTime"] = moment
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = moment
        log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return lake


def stall_of(lake, config, now=NOW):
    view = view_stream(lake, config, "s")
    assert isinstance(view, StreamHistory)
    return find_stall(lake, config, view, now)


def test_a_worker_that_stands_while_records_come_holds_its_stream_back(tmp_path):
    lake = lay(tmp_path, STOPPED, 4, 3, 2, 1)
    stall = stall_of(lake, declared())
    assert stall is not None
    assert stall.since == NOW - 3 * DAY
    assert stall.text == (
        "the frontier stands at 2024-05-01, while records came until 2026-11-29 00:00:00 UTC; "
        "held back by slow"
    )


def test_a_worker_without_a_record_holds_its_stream_back(tmp_path):
    lake = lay(tmp_path, Recorded("s", ["fast"], commits=3), 4, 3, 2, 1)
    one = {"worker": [1], "label": ["silent"], "opened_commit": [0]}
    write(lake.stream("s").workers, pa.table(one, schema=recorded_tapes._WORKERS))
    stall = stall_of(lake, declared())
    assert stall is not None
    assert stall.text.startswith("the frontier stands at the start, while ")
    assert stall.text.endswith("; held back by silent")


@pytest.mark.parametrize(
    ("recorded", "days"),
    [
        (STOPPED, (0.9, 0.9, 0.5, 0)),
        (Recorded("s", ["fast", "slow"], commits=3, slower={1: 5}), (4, 3, 2, 1)),
        (replace(STOPPED, step=timedelta(minutes=10)), (4, 3, 2, 1)),
        (Recorded("s", ["fast", "other"], commits=3), (400, 399, 398, 397)),
    ],
    ids=["for less than a day", "it moves", "no later than declared", "nothing more comes"],
)
def test_without_a_declared_bound_silence_and_lateness_are_no_stall(tmp_path, recorded, days):
    assert stall_of(lay(tmp_path, recorded, *days), declared()) is None


def test_closed_and_undeclared_streams_are_never_stalled(tmp_path):
    lake = lay(tmp_path, STOPPED, 4, 3, 2, 1)
    nothing = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})
    assert stall_of(lake, nothing) is None
    view = view_stream(lake, declared(), "s")
    assert isinstance(view, StreamHistory)
    closed = replace(view, workers=tuple(replace(each, holdings=()) for each in view.workers))
    for config in (declared(), declared(stalled_after=DAY)):
        assert find_stall(lake, config, closed, NOW) is None


def test_a_declared_bound_counts_from_the_last_move(tmp_path, monkeypatch):
    lake = lay(tmp_path, STOPPED, 4, 3, 2, 1)
    config = declared(stalled_after=5 * DAY)
    assert stall_of(lake, config) is None
    # Until the tape grows, nothing of it is read again.
    monkeypatch.setattr(stalls, "frontier_since", lambda *_: pytest.fail("read again"))
    stall = stall_of(lake, config, NOW + 1.5 * DAY)
    assert stall is not None
    assert stall.since == NOW - 4 * DAY
    assert stall.text == (
        "the frontier stands at 2024-05-01, longer than 5 days; held back by slow"
    )
