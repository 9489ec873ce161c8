"""A driver killed as workers close and open, records return or are dropped, a source is idle."""

from __future__ import annotations

import shutil

import pytest

from capstan.errors import InvalidRequestError
from capstan.storage.late.late_rows import count_late
from capstan.storage.tape import feed, index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support import lake_contents, small_stream
from tests.support.crash_cases import Work, cases

pytestmark = pytest.mark.timeout(1800)

RESCALING = {"workers": 5, "rescale": 5}
RESCALE = [
    Work("capture", point, RESCALING, world="keyed")
    for point in ("rescale.claim", "rescale.settings", "rescale.workers", "rescale.events")
]
PUT_BACK = [
    Work("put-back", point) for point in ("put-back.claim", "put-back.records", "put-back.events")
]
DROP = [Work("drop", point) for point in ("tape.settled", "drop.rows", "drop.claim", "drop.events")]
FIX = [Work("fix", point) for point in ("fix.rows", "fix.claim", "fix.records", "fix.events")]
IDLE = [Work("capture", point, {"idle": True}) for point in ("idle.claim", "idle.events")]


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
def rescaled(keyed):
    world = keyed()
    world.act("capture", workers=5, rescale=5)
    lake_contents.require_sound(world.spark, world.lake)
    return lake_contents.tape(world.lake), lake_contents.feed(world.lake)


@pytest.fixture(scope="module")
def put_back(recorded):
    world = recorded()
    assert int(str(world.act("put-back")["records"])) > 0
    lake_contents.require_sound(world.spark, world.lake)
    return lake_contents.tape(world.lake), lake_contents.feed(world.lake)


@pytest.fixture(scope="module")
def dropped(recorded):
    world = recorded()
    assert int(str(world.act("drop")["records"])) > 0
    return lake_contents.tape(world.lake)


@pytest.fixture(scope="module")
def repaired(recorded):
    world = recorded()
    assert int(str(world.act("fix")["records"])) > 0
    lake_contents.require_sound(world.spark, world.lake)
    return lake_contents.tape(world.lake)


@pytest.mark.parametrize("work", cases(RESCALE))
def test_a_killed_rescale_ends_in_the_same_tape(killed, rescaled, work) -> None:
    # It is written down, so no second one has to be asked for; nobody can go on as it was before.
    killed.act("capture", workers=5)
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == rescaled
    with pytest.raises(InvalidRequestError, match="CAP-RESCALE"):
        killed.act("capture", workers=3)
    killed.act("capture", **RESCALING)
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == rescaled
    lake_contents.require_sound(killed.spark, killed.lake)


@pytest.mark.parametrize(
    "work", cases([Work("capture", "capture.late:3", {"workers": 3}, world="empty")])
)
def test_a_partial_batch_is_finished_before_a_rescale(killed, rescaled, work) -> None:
    before = lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)
    with pytest.raises(InvalidRequestError) as refused:
        killed.act("capture", **RESCALING)
    assert refused.value.code == "CAP-HALF-DONE"
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == before
    killed.act("capture", workers=3)
    killed.act("capture", **RESCALING)
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == rescaled


@pytest.mark.parametrize("work", cases(PUT_BACK, core=["put-back.records"]))
def test_a_killed_put_back_ends_in_the_same_tape(killed, put_back, work) -> None:
    # Whoever writes next carries it out first, be it a capture that finds nothing new.
    killed.act("capture" if work.point == "put-back.records" else "put-back")
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == put_back
    assert killed.act("put-back")["records"] == 0
    assert (lake_contents.tape(killed.lake), lake_contents.feed(killed.lake)) == put_back
    lake_contents.require_sound(killed.spark, killed.lake)


@pytest.mark.parametrize("work", cases(DROP, core=["drop.claim"]))
def test_a_killed_drop_ends_in_the_same_tape(killed, dropped, work) -> None:
    # Once its number is taken, whoever writes next carries it out.
    killed.act("capture" if work.point == "drop.claim" else "drop")
    tape = open_tape(killed.lake, small_stream.NAME)
    assert lake_contents.tape(killed.lake) == dropped
    assert [entry.origin for entry in feed.synthetic_batches(tape)] == [feed.Origin.DROP]
    assert count_late(tape, newest_cut(tape)) == {}
    assert killed.act("drop")["records"] == 0
    assert lake_contents.tape(killed.lake) == dropped
    lake_contents.require_sound(killed.spark, killed.lake)


@pytest.mark.parametrize("work", cases(FIX))
def test_a_killed_fix_ends_in_the_same_tape(killed, repaired, work) -> None:
    # Once its number is taken, whoever writes next carries it out, without the SQL.
    killed.act("capture" if work.point in ("fix.claim", "fix.records") else "fix")
    tape = open_tape(killed.lake, small_stream.NAME)
    assert lake_contents.tape(killed.lake) == repaired
    assert [entry.origin for entry in feed.synthetic_batches(tape)] == [feed.Origin.FIX]
    assert "no-time" not in count_late(tape, newest_cut(tape))
    assert killed.act("fix")["records"] == 0
    assert lake_contents.tape(killed.lake) == repaired
    lake_contents.require_sound(killed.spark, killed.lake)


@pytest.mark.parametrize("work", cases(IDLE))
def test_a_killed_idle_advance_completes_as_planned(killed, work) -> None:
    tape = open_tape(killed.lake, small_stream.NAME)
    (claim,) = feed.synthetic_batches(tape)
    killed.act("capture")
    assert feed.synthetic_batches(tape) == (claim,)
    (held,) = index.frontier_of(tape, index.worker_states(tape, newest_cut(tape))).elements
    assert list(held) == [claim.detail["event"]]
    lake_contents.require_sound(killed.spark, killed.lake)
