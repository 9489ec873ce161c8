"""Maintenance and retirement, killed at each write point; then a rerun ends as if undisturbed."""

from __future__ import annotations

import pytest

from capstan.errors import InvalidRequestError
from capstan.storage.compaction.growing_tables import files_of
from capstan.storage.ledger.retirements import read_retired
from capstan.storage.tape.tape import open_tape
from tests.support import lake_contents, small_stream
from tests.support.crash_cases import Work, cases

pytestmark = pytest.mark.timeout(1800)

# The tape is little: three batches have settled, and are worth a run.
SIZES = {"file": 2**20, "full": 10, "share": 1, "least": 1, "many": 2}
BEFORE = "2024-03-01T05:00:00Z"
MAINTAINING = [
    Work("maintain", point, {"sizes": SIZES})
    for point in ("maintain.written", "maintain.compacted", "maintain.checkpoint")
]
RETIRING = [
    Work("retire", point, {"before": BEFORE})
    for point in ("retire.begun", "retire.written", "retire.deleted", "retire.done")
]


def layout(lake):
    """The files of a tape's records: their batches, workers and rows."""
    files = files_of(lake.stream(small_stream.NAME).records, "batch", by_worker=True)
    return sorted((file.low, file.high, file.workers, file.rows) for file in files)


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


@pytest.mark.parametrize(
    "work",
    cases(
        MAINTAINING, core=["maintain.compacted"], stored=["maintain.written", "maintain.compacted"]
    ),
)
def test_a_killed_maintenance_ends_as_if_undisturbed(killed, maintained, undisturbed, work) -> None:
    assert lake_contents.tape(killed.lake) == undisturbed
    killed.act("maintain", sizes=SIZES)
    assert lake_contents.tape(killed.lake) == undisturbed
    assert layout(killed.lake) == layout(maintained.lake)
    lake_contents.require_sound(killed.spark, killed.lake)
    again = killed.act("maintain", sizes=SIZES)
    assert (again["rewritten"], again["vacuumed"]) == (0, 0)


@pytest.mark.parametrize("work", cases(RETIRING, core=["retire.deleted"]))
def test_a_killed_retirement_ends_as_if_undisturbed(killed, retired, undisturbed, work) -> None:
    # Wherever it was killed, nobody is answered with fewer rows.
    with pytest.raises(InvalidRequestError) as refused:
        killed.replay({"into": "whole", "partial": True})
    assert refused.value.code == "CAP-RETIRED"
    lake_contents.require_sound(killed.spark, killed.lake)
    if work.point == "retire.written":
        # What was cut off may be finished by the next maintenance as well.
        assert list(killed.act("maintain", sizes=SIZES)["retired"]) == [small_stream.NAME]
    again = killed.act("retire", before=BEFORE)
    assert again["stands"] == (work.point in ("retire.written", "retire.done"))
    tape = lake_contents.tape(killed.lake)
    assert tape == lake_contents.tape(retired.lake)
    assert tape["events"] == undisturbed["events"]
    assert len(tape["records"]) < len(undisturbed["records"])
    (row,) = read_retired(killed.lake, open_tape(killed.lake, small_stream.NAME))
    assert row.done
    lake_contents.require_sound(killed.spark, killed.lake)
    assert killed.act("retire", before=BEFORE)["stands"]


@pytest.mark.rest
def test_maintenance_goes_on_after_a_retirement(retired) -> None:
    before = lake_contents.tape(retired.lake)
    assert retired.act("maintain", sizes=SIZES)["rewritten"] > 0
    assert lake_contents.tape(retired.lake) == before
    lake_contents.require_sound(retired.spark, retired.lake)
    done = retired.replay({"into": "rest", "partial": True, "since": BEFORE})
    assert done["certificate"]["published"]
