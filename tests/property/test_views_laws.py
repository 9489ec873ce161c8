"""The lines that a page draws are the frontiers of the recordings, at each commit."""

from __future__ import annotations

import json
import tempfile

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.protocol import Progress
from capstan.core.times import Kind, Time, TimeType
from capstan.reporting.frontier_history import read_progress
from capstan.reporting.stream_view import least_held
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from capstan.storage.tape.index_totals import totals_at
from capstan.storage.tape.tape import Cut, open_tape
from tests.support.recorded_tapes import write
from tests.support.strategies import recordings, widths


def lay(lake, time_type, workers):
    """A tape of recordings, each a list of `(commit, event)`."""
    time = pa.struct([(name, pa.int64()) for name in time_type.names])
    update = pa.struct([("time", time), ("diff", pa.int64())])
    schema = pa.schema(
        [
            ("worker", pa.int32()), ("seq", pa.int64()), ("kind", pa.string()), ("time", time),
            ("updates", pa.list_(update)), ("batch", pa.int64()), ("commit", pa.int64()),
            ("records", pa.int64()),
        ]
    )  # fmt: skip

    def struct(value):
        return dict(zip(time_type.names, value, strict=True))

    rows = []
    for worker, events in enumerate(workers):
        for seq, (commit, event) in enumerate(events):
            row = {"worker": worker, "seq": seq, "commit": commit, "batch": commit}
            if isinstance(event, Progress):
                updates = [{"time": struct(t), "diff": d} for t, d in event.updates]
                rows.append({**row, "kind": "progress", "updates": updates})
            else:
                printed = {"time": struct(event.time), "records": event.records}
                rows.append({**row, "kind": "messages", **printed})
    properties = {"capstan.format": "1", "capstan.time": json.dumps(time_type.to_json())}
    paths = lake.stream("s")
    roster = {"worker": range(len(workers)), "label": [str(n) for n in range(len(workers))]}
    opened = pa.table({**roster, "opened_commit": [0] * len(workers)})
    write(paths.workers, opened.set_column(0, "worker", opened["worker"].cast(pa.int32())))
    write(paths.events, pa.Table.from_pylist(rows, schema=schema), properties)
    return open_tape(lake, "s")


def held_after(time_type, events, commit):
    """The least value of the last coordinate that is held after a commit, told event by event."""
    held = {time_type.minimum: 1}
    for at, event in events:
        if at <= commit and isinstance(event, Progress):
            for time, diff in event.updates:
                held[Time(time)] = held.get(Time(time), 0) + diff
    return min((time[-1] for time, count in held.items() if count), default=None)


@settings(max_examples=60, deadline=None)
@given(st.data(), widths())
def test_a_line_is_the_frontier_after_each_commit(data, width):
    time_type = TimeType.of(**{f"t{i}": Kind.BIGINT for i in range(width)})
    last = data.draw(st.integers(0, 4))
    workers = []
    for events in data.draw(st.lists(recordings(width), min_size=1, max_size=3)):
        commits = sorted(data.draw(st.integers(0, last)) for _ in events)
        workers.append(list(zip(commits, events, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        tape = lay(Lake.at(folder), time_type, workers)
        cut = data.draw(st.integers(0, last))
        progress = read_progress(tape, Cut(cut, cut))
        table_cache.enable()
        try:
            summed = totals_at(tape, cut)
        finally:
            table_cache.disable()
        assert summed == totals_at(tape, cut)
    assert progress.commits == tuple(range(cut + 1))
    assert [state.worker for state in progress.workers] == list(range(len(workers)))
    for state, events in zip(progress.workers, workers, strict=True):
        reported = tuple(held_after(time_type, events, commit) for commit in progress.commits)
        assert progress.frontiers[state.worker] == reported
        assert least_held(state) == reported[-1]
        kept = [event for commit, event in events if commit <= cut]
        assert state.events == len(kept)
        assert state.records == sum(e.records for e in kept if not isinstance(e, Progress))
    assert sum(item.events for item in progress.newest) == sum(s.events for s in progress.workers)
