"""A checkpoint that was lost, or put back from an older copy: refused, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from capstan.errors import InvalidRequestError
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support import lake_contents, small_stream
from tests.support.sample_streams import lay

pytestmark = [pytest.mark.rest, pytest.mark.timeout(1800)]


def checkpoint(world) -> Path:
    return Path(world.lake.stream(small_stream.NAME).checkpoint)


def require_refused(world) -> None:
    """Check that a capture is refused, and leaves the tape as it was."""
    before = lake_contents.tape(world.lake)
    with pytest.raises(InvalidRequestError) as refused:
        world.act("capture")
    assert refused.value.code == "CAP-CHECKPOINT"
    assert lake_contents.tape(world.lake) == before


def offer_only(world, first: int, files: int) -> None:
    """Let the source offer these files of the stream, and no others."""
    shutil.rmtree(world.source)
    small_stream.feed(world.source, files, first=first)


@pytest.fixture
def cut_off(growing, kill):
    """Makes worlds whose capture was cut off at a point of the second micro-batch."""

    def make(point: str):
        world = growing()
        small_stream.feed(world.source, 2)
        kill([world.step("capture", point)])
        return world

    return make


def test_lost_or_older_checkpoints_are_refused(growing, undisturbed, tmp_path) -> None:
    world = growing()
    small_stream.feed(world.source, 2)
    world.act("capture")
    shutil.copytree(checkpoint(world), tmp_path / "older")
    small_stream.feed(world.source, 1, first=2)
    world.act("capture")
    shutil.copytree(checkpoint(world), tmp_path / "right")
    small_stream.feed(world.source, 1, first=3)

    shutil.rmtree(checkpoint(world))
    require_refused(world)
    shutil.copytree(tmp_path / "older", checkpoint(world))
    require_refused(world)

    shutil.rmtree(checkpoint(world))
    offer_only(world, 3, 1)
    world.act("capture", reseat=True)
    actual = lake_contents.without_files(lake_contents.tape(world.lake))
    assert actual == lake_contents.without_files(undisturbed)
    lake_contents.require_sound(world.spark, world.lake)

    # The one that was right before is another one now.
    shutil.rmtree(checkpoint(world))
    shutil.copytree(tmp_path / "right", checkpoint(world))
    require_refused(world)


def test_a_lost_checkpoint_s_partial_batch_leaves_nothing(cut_off, undisturbed) -> None:
    world = cut_off("capture.late:2")
    shutil.rmtree(checkpoint(world))
    require_refused(world)
    offer_only(world, 1, 3)
    world.act("capture", reseat=True)
    actual = lake_contents.without_files(lake_contents.tape(world.lake))
    assert actual == lake_contents.without_files(undisturbed)
    lake_contents.require_sound(world.spark, world.lake)


def test_workers_of_a_partial_batch_do_not_hold_the_frontier(cut_off) -> None:
    """They were written down before the checkpoint was lost; what comes next has another site."""
    world = cut_off("capture.workers:2")
    shutil.rmtree(checkpoint(world))
    shutil.rmtree(world.source)
    world.source.mkdir()
    lay(world.source, "east", [(row[0], "east", *row[2:]) for row in small_stream.rows_of(1)])
    tape = open_tape(world.lake, small_stream.NAME)
    before = index.frontier_of(tape, index.worker_states(tape, newest_cut(tape)))
    world.act("capture", reseat=True)
    lake_contents.require_sound(world.spark, world.lake)
    states = index.worker_states(tape, newest_cut(tape))
    assert [state.label for state in states] == ["north", "south", "west", "east"]
    assert states[3].records > 0
    held = index.frontier_of(tape, states).elements
    assert [tuple(time) for time in held] > [tuple(time) for time in before.elements]
