"""A driver killed at every write point of capture; then a rerun ends in the same tape."""

from __future__ import annotations

import pytest

from capstan.errors import InvalidRequestError
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.tape.schema import FORMAT
from capstan.storage.tape.tape import format_of
from tests.support import lake_contents, small_stream
from tests.support.crash_cases import CAPTURE_POINTS, Work, cases

pytestmark = pytest.mark.timeout(1800)

CAPTURES = [Work("capture", point, world="empty") for point in CAPTURE_POINTS]


STORED = ["capture.records:3", "capture.events:1"]
# Each point once; the same point of another batch nightly.
AGAIN = [
    "capture.claim:2",
    "capture.workers:2",
    "capture.records:1",
    "capture.late:3",
    "capture.events:3",
]


@pytest.mark.parametrize(
    "work", cases(CAPTURES, core=["capture.records:3"], night=AGAIN, stored=STORED)
)
def test_a_killed_capture_ends_in_the_same_tape(killed, captured, undisturbed, work) -> None:
    before = lake_contents.tape(killed.lake)
    assert before != undisturbed
    if work.point == "capture.late:3":
        # Late rows of the batch are stored, its events are not: its records would be lost.
        for action in ("close", "put-back"):
            with pytest.raises(InvalidRequestError) as refused:
                killed.act(action)
            assert refused.value.code == "CAP-HALF-DONE"
        assert lake_contents.tape(killed.lake) == before
    killed.act("capture")
    assert lake_contents.tape(killed.lake) == undisturbed
    assert lake_contents.feed(killed.lake) == lake_contents.feed(captured)
    lake_contents.require_sound(killed.spark, killed.lake)
    assert killed.act("capture") == {"batches": 0, "fed": 0, "records": 0}
    assert lake_contents.tape(killed.lake) == undisturbed


MERGING = [
    Work("capture", point, {"every": 2}, name="merging", world="empty")
    # The first two files of the index, of the workers and of the feed.
    for point in ("maintain.written:1", "maintain.compacted:1", "maintain.written:3")
]


@pytest.mark.parametrize(
    "work", cases(MERGING, stored=["merging-maintain.written:1", "merging-maintain.compacted:1"])
)
def test_a_capture_killed_while_it_merges_its_index_goes_on(
    killed, captured, undisturbed, work
) -> None:
    merged = work.point != "maintain.written:1"
    path = killed.lake.stream(small_stream.NAME).events
    assert delta.open_table(path).get_add_actions().num_rows == (1 if merged else 2)
    assert killed.act("capture", every=2)["batches"] == small_stream.FILES - 2
    assert lake_contents.tape(killed.lake) == undisturbed
    assert lake_contents.feed(killed.lake) == lake_contents.feed(captured)
    assert delta.open_table(path).get_add_actions().num_rows < small_stream.FILES
    lake_contents.require_sound(killed.spark, killed.lake)
    assert killed.act("capture", every=2) == {"batches": 0, "fed": 0, "records": 0}


@pytest.mark.rest
def test_a_tape_is_brought_to_this_format_once(recorded, kill) -> None:
    world = recorded()
    events = world.lake.stream(small_stream.NAME).events
    arrow_writer.set_properties(events, {"capstan.format": "1"})
    kill([world.step("close", "tape.upgrade")])
    assert format_of(events) == FORMAT
    before = delta.version_of(events)
    assert world.act("close") == {"closed": 3}
    assert delta.version_of(events) == before + 1
    lake_contents.require_sound(world.spark, world.lake)


@pytest.mark.parametrize("work", cases([Work("close", "capture.close")]))
def test_a_killed_close_closes_once(killed, undisturbed, work) -> None:
    closed = lake_contents.tape(killed.lake)
    assert len(closed["events"]) == len(undisturbed["events"]) + 3
    assert killed.act("close") == {"closed": 0}
    assert lake_contents.tape(killed.lake) == closed
    lake_contents.require_sound(killed.spark, killed.lake)
    with pytest.raises(InvalidRequestError) as refused:
        killed.act("capture")
    assert refused.value.code == "CAP-CLOSED"
