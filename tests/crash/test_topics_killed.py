"""A driver killed while a recording is taken from Kafka's topics; more has come before a rerun."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support import lake_contents, small_stream
from tests.support.kafka_broker import broker

pytestmark = [pytest.mark.rest, pytest.mark.timeout(1800)]

POINTS = ["topics.workers", "topics.records", "topics.events"]


@pytest.fixture(scope="module")
def killed(empty, recorded, kill, tmp_path_factory):
    """Worlds by the point at which they were cut off; the one that is exported; how much it had.

    Before any of them goes on, late records are put back in the stream, and all is exported again.
    """
    with broker(tmp_path_factory.mktemp("kafka") / "broker", partitions=2) as kafka:
        topics = f"kafka://{kafka.address}/killed"
        origin = recorded()
        first = origin.act("export-topics", topics=topics)
        worlds = {point: empty() for point in POINTS}
        kill([worlds[point].step("import-topics", point, topics=topics) for point in POINTS])
        origin.act("put-back")
        origin.act("export-topics", topics=topics)
        yield worlds, origin, first, topics


def recording(world) -> list[tuple[object, ...]]:
    """The events of a tape, in whichever commits and batches they came onto it."""
    events = pl.read_delta(world.lake.stream(small_stream.NAME).events)
    return events.drop("batch", "commit").sort("worker", "seq").rows()


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_import_goes_on_and_has_every_event_once(killed, point) -> None:
    worlds, origin, first, topics = killed
    world = worlds[point]
    actual = [world.act("import-topics", topics=topics) for _ in range(3)]
    assert recording(world) == recording(origin)
    lake_contents.require_sound(world.spark, world.lake)
    assert actual[2]["unchanged"]
    # What was written down with its records is finished as it was, whatever has come since.
    commits = pl.read_delta(world.lake.stream(small_stream.NAME).events).group_by("commit").len()
    sizes = dict(commits.iter_rows())
    if point == "topics.workers":
        assert set(sizes) == {0}
    else:
        assert sizes[0] == first["events"]
        assert set(sizes) == {0, 1}
