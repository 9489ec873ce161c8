"""Times of a region, told for whole columns: as one by one, in every domain of times."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import ProjectConfig
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.replay.output.certificate import late_in
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.preview import _cells, published_overlap
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.region_mask import inside
from capstan.storage.tape.tape import open_tape
from tests.support.jvmless_lake import lay_tape

TYPES = {
    "epoch": TimeType.of(epoch=Kind.BIGINT),
    "event": TimeType.of(event=Kind.TIMESTAMP),
    "day": TimeType.of(event=Kind.DATE),
    "epoch, event": TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP),
}
ARROW = {Kind.BIGINT: pa.int64(), Kind.DATE: pa.date32(), Kind.TIMESTAMP: pa.timestamp("us", "UTC")}
bounds = st.none() | st.integers(-2, 7)


def regions(width: int) -> st.SearchStrategy[Region]:
    box = st.builds(Box, st.tuples(*[bounds] * width), st.tuples(*[bounds] * width))
    times = st.tuples(*[st.integers(-2, 7)] * width)
    frontiers = st.none() | st.lists(times, max_size=3).map(Antichain.of)
    return st.builds(Region, box, frontiers, frontiers)


def grid(width: int, numbers: range) -> list[tuple[int, ...]]:
    return [(n,) for n in numbers] if width == 1 else [(n, m) for n in numbers for m in numbers]


def some(width: int) -> list[Region]:
    """Boxes, and boxes that frontiers cut."""
    low, high = (None, *(1,) * (width - 1)), (4,) * width
    below, above = Antichain.of([(3,) * width]), Antichain.of([(1, *(2,) * (width - 1))])
    every = Box((None,) * width, (None,) * width)
    boxes = every, Box(low, high), Box((5,) * width, (5,) * width)
    return [Region(box, *cut) for box in boxes for cut in ((), (below,), (below, above))]


@given(st.integers(1, 2).flatmap(regions))
def test_a_column_of_times_is_told_as_one_by_one(region: Region) -> None:
    times = grid(len(region.box.since), range(-3, 9))
    reported = inside(region, np.array(times, dtype=np.int64))
    assert reported.tolist() == [region.contains(Time(time)) for time in times]
    assert inside(region, np.empty((0, len(region.box.since)), dtype=np.int64)).tolist() == []


def lay_late(lake: Lake, time_type: TimeType) -> list[tuple[int | None, Time | None, str]]:
    """Late rows of workers and times, some without either; what they are."""
    draw = Random(2013)
    times = [*map(Time, grid(len(time_type.coordinates), range(6))), None]
    rows = [
        (draw.choice([0, 1, None]), draw.choice(times), draw.choice(["late", "no-time"]))
        for _ in range(500)
    ]
    kind = pa.struct(
        [(coordinate.name, ARROW[coordinate.kind]) for coordinate in time_type.coordinates]
    )
    nulls = dict.fromkeys(time_type.names)
    # Of a row without a time the struct is null, or what is in it.
    kept = [
        dict(zip(time_type.names, time, strict=True)) if time is not None else
        draw.choice([None, nulls])
        for _, time, _ in rows
    ]  # fmt: skip
    workers, _, reasons = zip(*rows, strict=True)
    table = {
        "worker": pa.array(workers, pa.int32()),
        "batch": pa.array([0] * len(rows), pa.int64()),
        "time": pa.array(kept, kind),
        "reason": pa.array(reasons),
    }
    deltalake.write_deltalake(lake.stream("s").late, pa.table(table))
    return rows


@pytest.mark.parametrize("domain", TYPES)
@pytest.mark.parametrize("everyone", [False, True])
def test_late_rows_are_counted_as_one_by_one(tmp_path: Path, domain: str, everyone: bool) -> None:
    lake, time_type = Lake.at(tmp_path), TYPES[domain]
    width = len(time_type.coordinates)
    lay_tape(lake, "s", ["a", "b"], [(0,) * width], None, time_type=time_type)
    rows = lay_late(lake, time_type)
    tape = open_tape(lake, "s")
    cut = index.find_cut(tape, None)
    counts = []
    for region in some(width):
        expected = Counter(
            reason
            for worker, time, reason in rows
            if (everyone if time is None else region.contains(time))
            and (everyone if worker is None else worker == 1)
        )
        assert late_in(tape, cut, (1,), region, everyone) == expected
        counts.append(expected.total())
    assert len(set(counts)) > 3


@pytest.mark.parametrize("domain", TYPES)
def test_only_messages_of_the_range_are_looked_at(tmp_path: Path, domain: str) -> None:
    lake, time_type = Lake.at(tmp_path), TYPES[domain]
    width = len(time_type.coordinates)
    times = grid(width, range(6))
    lay_tape(lake, "s", ["a", "b"], times, None, time_type=time_type)
    declarations = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
    whole = make_plan(lake, declarations, Request("s", "t"))
    for region in some(width):
        plan = replace(whole, region=region)
        box = region.simplified().box
        assert len(_cells(plan, plan.inputs.streams[0])[0]) == 2 * sum(map(box.contains, times))
        played = sum(region.contains(Time(time)) for time in times)
        assert published_overlap(plan, []).missing == 2 * played
