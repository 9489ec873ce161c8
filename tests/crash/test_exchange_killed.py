"""A driver killed at every write point of an import and of a re-capture; then the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.verify import verify
from tests.support import lake_contents
from tests.support.crash_cases import Work, cases

pytestmark = pytest.mark.timeout(1800)

RECORDINGS = Path(__file__).parents[1] / "conformance" / "timely" / "d1_product_w2"
COPY = "copy"
TAKING = {"recordings": str(RECORDINGS)}
COPYING = {"into": COPY, "peers": 2}
IMPORTS = [
    Work("import", point, TAKING, world="empty")
    for point in ("import.records", "import.workers", "import.events")
]
RECAPTURES = [
    Work("recapture", point, COPYING)
    for point in ("recapture.workers", "recapture.records", "recapture.events")
]


def tape(world, name: str) -> dict[str, list[str]]:
    """What is on a tape, and sound."""
    assert verify(world.spark, world.lake, open_tape(world.lake, name), deep=True).valid
    paths = world.lake.stream(name)
    return {
        item: lake_contents.rows(getattr(paths, item)) for item in ("workers", "records", "events")
    }


@pytest.fixture(scope="module")
def imported(empty):
    """The tape of an import that nobody has disturbed."""
    world = empty()
    world.act("import", **TAKING)
    return tape(world, RECORDINGS.name)


@pytest.fixture(scope="module")
def recaptured(recorded):
    """The tape of a re-capture that nobody has disturbed."""
    world = recorded()
    assert world.act("recapture", **COPYING)["records"]
    return tape(world, COPY)


@pytest.mark.parametrize("work", cases(IMPORTS, core=["import.records"]))
def test_a_killed_import_ends_in_the_same_tape(killed, imported, work) -> None:
    unchanged = killed.act("import", **TAKING)["unchanged"]
    assert unchanged is (work.point == "import.events")
    assert tape(killed, RECORDINGS.name) == imported
    assert newest_cut(open_tape(killed.lake, RECORDINGS.name)).commit == 0


@pytest.mark.parametrize("work", cases(RECAPTURES))
def test_a_killed_recapture_ends_in_the_same_tape(killed, recaptured, work) -> None:
    unchanged = killed.act("recapture", **COPYING)["unchanged"]
    assert unchanged is (work.point == "recapture.events")
    assert tape(killed, COPY) == recaptured
