"""A driver killed while workers close and open, records are put back, a source is idle."""

from __future__ import annotations

import shutil

import pytest

from capstan.errors import BadRequest
from capstan.tape import feed, summary
from capstan.tape.tape import newest_cut, open_tape
from capstan.testing import contents, little

pytestmark = pytest.mark.timeout(1800)

RESCALE = ["rescale.claim", "rescale.settings", "rescale.workers", "rescale.events"]
PUT_BACK = ["put-back.claim", "put-back.records", "put-back.events"]
IDLE = ["idle.claim", "idle.events"]


@pytest.fixture(scope="module")
def keyed(empty):
    """Makes lakes with the whole stream on tape, told apart by three keys."""
    first = empty()
    first.act("capture", workers=3)

    def make():
        world = empty()
        shutil.copytree(first.lake.root, world.lake.root)
        return world

    return make


@pytest.fixture(scope="module")
def killed(empty, keyed, recorded, kill):
    """Worlds by the point at which they were cut off."""
    worlds = {point: keyed() for point in RESCALE}
    worlds["half-done"] = empty()
    worlds |= {point: recorded() for point in (*PUT_BACK, *IDLE)}
    script = [worlds[p].step("capture", p, workers=5, rescale=5) for p in RESCALE]
    script += [worlds[p].step("put-back", p) for p in PUT_BACK]
    script += [worlds[p].step("capture", p, idle=True) for p in IDLE]
    script.append(worlds["half-done"].step("capture", "capture.late:3", workers=3))
    kill(script)
    return worlds


@pytest.fixture(scope="module")
def rescaled(keyed):
    world = keyed()
    world.act("capture", workers=5, rescale=5)
    contents.require_sound(world.spark, world.lake)
    return contents.tape(world.lake), contents.feed(world.lake)


@pytest.fixture(scope="module")
def put_back(recorded):
    world = recorded()
    assert int(str(world.act("put-back")["records"])) > 0
    contents.require_sound(world.spark, world.lake)
    return contents.tape(world.lake), contents.feed(world.lake)


@pytest.mark.parametrize("point", RESCALE)
def test_a_killed_rescale_ends_in_the_same_tape(killed, rescaled, point) -> None:
    world = killed[point]
    # It is written down, so no second one has to be asked for; nobody can go on as it was before.
    world.act("capture", workers=5)
    assert (contents.tape(world.lake), contents.feed(world.lake)) == rescaled
    with pytest.raises(BadRequest, match="CAP-RESCALE"):
        world.act("capture", workers=3)
    world.act("capture", workers=5, rescale=5)
    assert (contents.tape(world.lake), contents.feed(world.lake)) == rescaled
    contents.require_sound(world.spark, world.lake)


def test_a_half_done_batch_is_finished_before_its_stream_is_rescaled(killed, rescaled) -> None:
    world = killed["half-done"]
    before = contents.tape(world.lake), contents.feed(world.lake)
    with pytest.raises(BadRequest) as refused:
        world.act("capture", workers=5, rescale=5)
    assert refused.value.code == "CAP-HALF-DONE"
    assert (contents.tape(world.lake), contents.feed(world.lake)) == before
    world.act("capture", workers=3)
    world.act("capture", workers=5, rescale=5)
    assert (contents.tape(world.lake), contents.feed(world.lake)) == rescaled


@pytest.mark.parametrize("point", PUT_BACK)
def test_a_killed_put_back_ends_in_the_same_tape(killed, put_back, point) -> None:
    world = killed[point]
    # Whoever writes next carries it out first, be it a capture that finds nothing new.
    world.act("capture" if point == "put-back.records" else "put-back")
    assert (contents.tape(world.lake), contents.feed(world.lake)) == put_back
    assert world.act("put-back")["records"] == 0
    assert (contents.tape(world.lake), contents.feed(world.lake)) == put_back
    contents.require_sound(world.spark, world.lake)


@pytest.mark.parametrize("point", IDLE)
def test_an_idle_source_that_was_cut_off_moves_to_where_it_was_to(killed, point) -> None:
    world = killed[point]
    tape = open_tape(world.lake, little.NAME)
    (claim,) = feed.inserted(tape)
    world.act("capture")
    assert feed.inserted(tape) == (claim,)
    (held,) = summary.frontier_of(tape, summary.worker_states(tape, newest_cut(tape))).elements
    assert list(held) == [claim.detail["event"]]
    contents.require_sound(world.spark, world.lake)
