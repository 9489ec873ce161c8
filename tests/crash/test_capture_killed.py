"""A driver killed at every write point of capture; then a rerun ends in the same tape."""

from __future__ import annotations

import pytest

from capstan.errors import BadRequest
from capstan.tape import delta
from capstan.tape.schema import FORMAT
from capstan.tape.tape import format_of
from capstan.testing import contents, little

pytestmark = pytest.mark.timeout(1800)

# The second micro-batch opens a worker; the third does not move the watermark.
POINTS = [
    "capture.claim:1",
    "capture.workers:1",
    "capture.records:1",
    "capture.late:1",
    "capture.events:1",
    "capture.claim:2",
    "capture.workers:2",
    "capture.records:3",
    "capture.late:3",
    "capture.events:3",
]


@pytest.fixture(scope="module")
def killed(empty, recorded, kill):
    """Worlds by the point at which capture, or close, was cut off in them."""
    worlds = {point: empty() for point in (*POINTS, "half-done")}
    script = [worlds[point].step("capture", point) for point in POINTS]
    script.append(worlds["half-done"].step("capture", "capture.late:3"))
    worlds["close"] = recorded()
    script.append(worlds["close"].step("close", "capture.close"))
    world = worlds["older"] = recorded()
    delta.set_properties(
        world.spark, world.lake.stream(little.NAME).events, {"capstan.format": "1"}
    )
    script.append(world.step("close", "tape.upgrade"))
    kill(script)
    return worlds


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_capture_ends_in_the_same_tape(killed, captured, undisturbed, point) -> None:
    world = killed[point]
    assert contents.tape(world.lake) != undisturbed
    world.act("capture")
    assert contents.tape(world.lake) == undisturbed
    assert contents.feed(world.lake) == contents.feed(captured)
    contents.require_sound(world.spark, world.lake)
    assert world.act("capture") == {"batches": 0, "fed": 0, "records": 0}
    assert contents.tape(world.lake) == undisturbed


def test_a_tape_is_brought_to_this_format_once(killed) -> None:
    world = killed["older"]
    events = world.lake.stream(little.NAME).events
    assert format_of(events) == FORMAT
    before = delta.version_of(events)
    assert world.act("close") == {"closed": 3}
    assert delta.version_of(events) == before + 1
    contents.require_sound(world.spark, world.lake)


def test_a_half_done_batch_is_finished_before_another_is_begun(killed, undisturbed) -> None:
    # Late rows of the batch are stored, its events are not: its records would be lost.
    world = killed["half-done"]
    before = contents.tape(world.lake)
    for action in ("close", "put-back"):
        with pytest.raises(BadRequest) as refused:
            world.act(action)
        assert refused.value.code == "CAP-HALF-DONE"
    assert contents.tape(world.lake) == before
    world.act("capture")
    assert contents.tape(world.lake) == undisturbed


def test_a_killed_close_closes_once(killed, undisturbed) -> None:
    world = killed["close"]
    closed = contents.tape(world.lake)
    assert len(closed["events"]) == len(undisturbed["events"]) + 3
    assert world.act("close") == {"closed": 0}
    assert contents.tape(world.lake) == closed
    contents.require_sound(world.spark, world.lake)
    with pytest.raises(BadRequest) as refused:
        world.act("capture")
    assert refused.value.code == "CAP-CLOSED"
