"""The stall check on tapes without a JVM: since when a frontier has not moved."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.capture.synthetic.stall_check import frontier_since, require_moving
from capstan.errors import CheckFailedError
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Tape, open_tape
from tests.support.sample_streams import little_stream

DAY = timedelta(days=1)
START = datetime(2024, 5, 1, tzinfo=UTC)
TIME = pa.struct([("epoch", pa.int64())])
EVENTS = pa.schema(
    [
        ("worker", pa.int32()), ("seq", pa.int64()), ("kind", pa.string()), ("time", TIME),
        ("updates", pa.list_(pa.struct([("time", TIME), ("diff", pa.int64())]))),
        ("batch", pa.int64()), ("commit", pa.int64()), ("records", pa.int64()),
    ]
)  # fmt: skip
WORKERS = pa.schema([("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())])
Moves = list[dict[int, int | None]]


def lay(root: Path, moves: Moves, opened: dict[int, int] | None = None) -> Tape:
    """A tape with one commit a day: in each, workers move to a time; None closes one.

    Args:
        root: The lake.
        moves: Per commit, where workers move.
        opened: Commits in which workers are opened that are not there from the beginning.
    """
    paths = Lake.at(root).stream("s")
    begun = opened or {}
    everyone = sorted({worker for move in moves for worker in move} | {0})
    held: dict[int, int | None] = dict.fromkeys(everyone, 0)
    deltalake.DeltaTable.create(
        paths.events,
        EVENTS,
        configuration={
            "capstan.format": "1",
            "capstan.time": json.dumps({"coordinates": [{"name": "epoch", "kind": "bigint"}]}),
            "capstan.settings": "{}",
        },
        raise_if_key_not_exists=False,
    )
    for commit, move in enumerate(moves):
        rows = [{"worker": 0, "kind": "messages", "time": {"epoch": 99}, "records": 1}]
        for worker, to in move.items():
            now = held[worker]
            updates = [] if now is None else [{"time": {"epoch": now}, "diff": -1}]
            updates += [] if to is None else [{"time": {"epoch": to}, "diff": 1}]
            rows.append({"worker": worker, "kind": "progress", "updates": updates})
            held[worker] = to
        stamped = [{**row, "commit": commit, "batch": commit} for row in rows]
        note = json.dumps({"capstan": {"stream": "s", "token": str(commit)}})
        deltalake.write_deltalake(
            paths.events,
            pa.Table.from_pylist(stamped, schema=EVENTS),
            mode="append",
            commit_properties=deltalake.CommitProperties(custom_metadata={"userMetadata": note}),
        )
        # Somebody else's commits are none of the tape.
        table = deltalake.DeltaTable(paths.events)
        table.alter.set_table_properties({"capstan.a": str(commit)}, raise_if_not_exists=False)
    listed = [
        {"worker": worker, "label": f"w{worker}", "opened_commit": begun.get(worker, 0)}
        for worker in everyone
    ]
    deltalake.write_deltalake(paths.workers, pa.Table.from_pylist(listed, schema=WORKERS))
    for log in sorted(Path(paths.events, "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        day = (int(log.stem) - 1) // 2
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = int((START + day * DAY).timestamp() * 1000)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return open_tape(Lake.at(root), "s")


LONG_AGO = START - 100 * DAY


@pytest.mark.parametrize(
    ("moves", "day"),
    [
        ([{0: 1}], 0),
        ([{0: 1}, {}, {}], 0),
        ([{0: 1}, {0: 2}, {}], 1),
        # Worker 1 holds the frontier back, however far the other gets.
        ([{0: 1, 1: 1}, {0: 5}, {0: 6}], 0),
        ([{0: 1, 1: 1}, {0: 5}, {1: 5}, {0: 6}], 2),
        # There and back again within a commit, or without any change.
        ([{0: 1}, {0: 1}, {0: 1}], 0),
        # A worker that closes is in nobody's way.
        ([{0: 3, 1: 1}, {}, {1: None}, {}], 2),
    ],
)
def test_the_time_since_when_the_frontier_has_not_moved(
    tmp_path: Path, moves: Moves, day: int
) -> None:
    assert frontier_since(lay(tmp_path, moves), LONG_AGO) == START + day * DAY


def test_a_worker_opened_later_does_not_move_the_frontier(tmp_path: Path) -> None:
    tape = lay(tmp_path, [{0: 3}, {}, {1: 3}, {}], {1: 2})
    assert frontier_since(tape, LONG_AGO) == START


def test_stalls_count_from_creation_and_never_when_closed(tmp_path: Path) -> None:
    empty = lay(tmp_path / "a", [])
    assert frontier_since(empty, LONG_AGO) == START - DAY
    bound = replace(little_stream(tmp_path), stalled_after=2 * DAY)
    with pytest.raises(CheckFailedError, match="the frontier has been at 0 since 2024-04-30"):
        require_moving(bound, empty, START + 2 * DAY)
    assert frontier_since(lay(tmp_path / "b", [{0: 1}, {0: None}]), LONG_AGO) is None


def test_expired_log_entries_are_older_than_any_bound(tmp_path: Path) -> None:
    tape = lay(tmp_path, [{0: 1}, {}, {}, {}])
    table = deltalake.DeltaTable(tape.paths.events)
    table.create_checkpoint()
    for log in sorted(Path(tape.paths.events, "_delta_log").glob("*.json"))[:-2]:
        log.unlink()
    enough = START + DAY
    actual = frontier_since(tape, enough)
    assert actual is not None
    assert actual < enough
    stream = replace(little_stream(tmp_path), stalled_after=2 * DAY)
    with pytest.raises(CheckFailedError, match="^CAP-STALLED"):
        require_moving(stream, tape, START + 3 * DAY)


def test_the_search_stops_at_the_limit(tmp_path: Path) -> None:
    tape = lay(tmp_path, [{0: 1}, {}, {}, {}, {}])
    actual = frontier_since(tape, START + 3 * DAY)
    assert actual == START + 3 * DAY


def test_an_exceeded_bound_fails_with_the_workers(tmp_path: Path) -> None:
    tape = lay(tmp_path, [{0: 1, 1: 1}, {0: 5}, {}])
    stream = little_stream(tmp_path)
    require_moving(stream, tape, START + 400 * DAY)
    bound = replace(stream, stalled_after=2 * DAY)
    require_moving(bound, tape, START + 2 * DAY)
    with pytest.raises(CheckFailedError, match="^CAP-STALLED: stream little: ") as caught:
        require_moving(bound, tape, START + 2 * DAY + timedelta(seconds=1))
    assert "has been at 1 since 2024-05-01 00:00:00 UTC, longer than 2 days; held back by w1" in (
        caught.value.message
    )
    assert caught.value.fields["workers"] == ["w1"]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 2), st.integers(0, 3), max_size=3), min_size=1, max_size=5
    )
)
def test_a_stall_begins_at_the_last_frontier_change(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[int, int]]
) -> None:
    held = dict.fromkeys((0, 1, 2), 0)
    moves: Moves = [{0: 0, 1: 0, 2: 0}]
    least = [0]
    for step in steps:
        held = {worker: held[worker] + step.get(worker, 0) for worker in held}
        moves.append({worker: held[worker] for worker in step})
        least.append(min(held.values()))
    day = max((i for i in range(1, len(least)) if least[i] != least[i - 1]), default=None)
    tape = lay(tmp_path_factory.mktemp("laws"), moves)
    assert frontier_since(tape, LONG_AGO) == START + (day or 0) * DAY
