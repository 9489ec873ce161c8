"""Maintenance and retirement, killed at each write point; then a rerun ends as if undisturbed."""

from __future__ import annotations

import pytest

from capstan.errors import BadRequest
from capstan.ledger.retired import read_retired
from capstan.maintain.tables import files_of
from capstan.tape.tape import open_tape
from capstan.testing import contents, little

pytestmark = pytest.mark.timeout(1800)

# The tape is little: three batches have settled, and are worth a run.
SIZES = {"file": 2**20, "full": 10, "share": 1, "least": 1, "many": 2}
BEFORE = "2024-03-01T05:00:00Z"
POINTS = ["maintain.written", "maintain.compacted", "maintain.checkpoint"]
RETIRING = ["retire.begun", "retire.written", "retire.deleted", "retire.done"]


def layout(lake):
    """The files of a tape's records: their batches, workers and rows."""
    files = files_of(lake.stream(little.NAME).records, "batch", by_worker=True)
    return sorted((each.low, each.high, each.workers, each.rows) for each in files)


@pytest.fixture(scope="module")
def killed(recorded, kill):
    """Worlds by the point at which their maintenance, or retirement, was cut off."""
    worlds = {point: recorded() for point in (*POINTS, *RETIRING)}
    script = [worlds[point].step("maintain", point, sizes=SIZES) for point in POINTS]
    script += [worlds[point].step("retire", point, before=BEFORE) for point in RETIRING]
    kill(script)
    return worlds


@pytest.fixture(scope="module")
def maintained(recorded):
    """A world that was maintained undisturbed."""
    world = recorded()
    assert world.act("maintain", sizes=SIZES)["rewritten"] > 0
    return world


@pytest.fixture(scope="module")
def retired(recorded):
    """A world of which records were retired undisturbed."""
    world = recorded()
    assert world.act("retire", before=BEFORE)["records"] > 0
    return world


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_maintenance_ends_as_if_undisturbed(
    killed, maintained, undisturbed, point
) -> None:
    world = killed[point]
    assert contents.tape(world.lake) == undisturbed
    world.act("maintain", sizes=SIZES)
    assert contents.tape(world.lake) == undisturbed
    assert layout(world.lake) == layout(maintained.lake)
    contents.require_sound(world.spark, world.lake)
    again = world.act("maintain", sizes=SIZES)
    assert (again["rewritten"], again["vacuumed"]) == (0, 0)


@pytest.mark.parametrize("point", RETIRING)
def test_a_killed_retirement_ends_as_if_undisturbed(killed, retired, undisturbed, point) -> None:
    world = killed[point]
    # Wherever it was killed, nobody is answered with fewer rows.
    with pytest.raises(BadRequest) as refused:
        world.replay({"into": "whole", "partial": True})
    assert refused.value.code == "CAP-RETIRED"
    contents.require_sound(world.spark, world.lake)
    if point == "retire.written":
        # What was cut off may be finished by the next maintenance as well.
        assert list(world.act("maintain", sizes=SIZES)["retired"]) == [little.NAME]
    again = world.act("retire", before=BEFORE)
    assert again["stands"] == (point in ("retire.written", "retire.done"))
    tape = contents.tape(world.lake)
    assert tape == contents.tape(retired.lake)
    assert tape["events"] == undisturbed["events"]
    assert len(tape["records"]) < len(undisturbed["records"])
    (row,) = read_retired(world.lake, open_tape(world.lake, little.NAME))
    assert row.done
    contents.require_sound(world.spark, world.lake)
    assert world.act("retire", before=BEFORE)["stands"]


def test_maintenance_goes_on_after_a_retirement(retired) -> None:
    before = contents.tape(retired.lake)
    assert retired.act("maintain", sizes=SIZES)["rewritten"] > 0
    assert contents.tape(retired.lake) == before
    contents.require_sound(retired.spark, retired.lake)
    done = retired.replay({"into": "rest", "partial": True, "since": BEFORE})
    assert done["certificate"]["published"]
