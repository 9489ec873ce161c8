"""A driver killed at every write point of an import and of a re-capture; then the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.tape.tape import newest_cut, open_tape
from capstan.testing import contents
from capstan.verify import verify

pytestmark = pytest.mark.timeout(1800)

RECORDINGS = Path(__file__).parents[1] / "conformance" / "timely" / "d1_product_w2"
IMPORTS = ["import.records", "import.workers", "import.events"]
RECAPTURES = ["recapture.workers", "recapture.records", "recapture.events"]
COPY = "copy"


def imported(world) -> dict[str, object]:
    return world.act("import", recordings=str(RECORDINGS))


def recaptured(world) -> dict[str, object]:
    return world.act("recapture", into=COPY, peers=2)


def tape(world, name: str) -> dict[str, list[str]]:
    """What is on a tape, and sound."""
    assert verify(world.spark, world.lake, open_tape(world.lake, name), deep=True).valid
    paths = world.lake.stream(name)
    return {each: contents.rows(getattr(paths, each)) for each in ("workers", "records", "events")}


@pytest.fixture(scope="module")
def killed(recorded, empty, kill):
    """Worlds by the point at which what was done in them was cut off."""
    worlds, script = {}, []
    for point in IMPORTS:
        worlds[point] = empty()
        script.append(worlds[point].step("import", point, recordings=str(RECORDINGS)))
    for point in RECAPTURES:
        worlds[point] = recorded()
        script.append(worlds[point].step("recapture", point, into=COPY, peers=2))
    kill(script)
    return worlds


@pytest.mark.parametrize("point", IMPORTS)
def test_a_killed_import_ends_in_the_same_tape(killed, empty, point) -> None:
    undisturbed = empty()
    imported(undisturbed)
    world = killed[point]
    assert imported(world)["stood"] is (point == "import.events")
    assert tape(world, RECORDINGS.name) == tape(undisturbed, RECORDINGS.name)
    assert newest_cut(open_tape(world.lake, RECORDINGS.name)).commit == 0


@pytest.mark.parametrize("point", RECAPTURES)
def test_a_killed_recapture_ends_in_the_same_tape(killed, recorded, point) -> None:
    undisturbed = recorded()
    assert recaptured(undisturbed)["records"]
    world = killed[point]
    assert recaptured(world)["stood"] is (point == "recapture.events")
    assert tape(world, COPY) == tape(undisturbed, COPY)
