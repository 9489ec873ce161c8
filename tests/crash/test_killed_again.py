"""Work that is killed, and killed again a step further on when it is taken up."""

from __future__ import annotations

import pytest

from capstan.storage.ledger import runs
from tests.support import lake_contents
from tests.support.small_stream import STAGED

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

ROUNDS = [
    ("capture.records:2", "replay.intent"),
    ("capture.late:1", "replay.fence"),
    ("capture.events:2", "replay.publish"),
]


@pytest.fixture(scope="module")
def killed(empty, recorded, kill):
    """A capture and a replay, cut off three times each."""
    capture, replay = empty(), recorded()
    for first, second in ROUNDS:
        kill([capture.step("capture", first), replay.step("replay", second, request=STAGED)])
    return capture, replay


def test_a_capture_killed_again_and_again_ends_in_the_same_tape(killed, undisturbed) -> None:
    world = killed[0]
    world.act("capture")
    assert lake_contents.tape(world.lake) == undisturbed
    lake_contents.require_sound(world.spark, world.lake)


def test_a_replay_killed_again_and_again_publishes_once(killed, whole) -> None:
    world = killed[1]
    done = world.replay(STAGED)
    assert lake_contents.table(world.lake, "staged") == whole["staged"]
    lake_contents.require_published_once(world.lake, done["run"])
    assert done["certificate"]["attempt"] == 3
    attempts = [row.attempt for row in runs.read_history(world.lake, done["run"]).rows]
    assert attempts == [1, 3, 3]
