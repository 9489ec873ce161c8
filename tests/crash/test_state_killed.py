"""A followed pipeline, killed run after run, on other workers each time, ends as one run."""

from __future__ import annotations

import os
import random
from datetime import timedelta

import pytest

from capstan.replay.snapshots import list_taken, parts_of
from tests.support import lake_contents, small_stream
from tests.support.sample_streams import START, lay, rows

pytestmark = [pytest.mark.rest, pytest.mark.timeout(1800)]

ROUNDS = [(2, 3, "replay.state"), (2, 5, "replay.publish"), (1, 2, "replay.intent")]
"""How many files are new, on how many replay workers, and where it is killed at first."""

SEED = int(os.environ["CAPSTAN_STATE_SEED"])
INTERVALS, WORKERS, ROWS = 30, (3, 5, 2), 24
POINTS = [
    *(("capture", f"capture.{each}") for each in ("begin", "claim", "records", "events")),
    *(
        ("replay", f"replay.{each}")
        for each in (
            "claim", "target", "intent", "metrics", "state", "staging", "audit", "holds",
            "publish", "coverage", "certificate",
        )
    ),
]  # fmt: skip
"""Where a driver may be killed in an interval, in its capture or its replay."""


def request(into: str, peers: int | None = None) -> dict[str, object]:
    return {"into": into, "follow": into, "pipeline": "places", "sink": "hours", "peers": peers}


@pytest.fixture(scope="module")
def world(growing, kill):
    """A lake whose tape grows by a file or two a round, and what follows it."""
    made = growing()
    files = 0
    for number, (new, peers, point) in enumerate(ROUNDS):
        small_stream.feed(made.source, new, first=files)
        files += new
        made.act("capture")
        script = [made.step("replay", point, request=request("killed", peers))]
        if number == 2:
            # What the first attempt had kept is of no use any more.
            script.insert(0, made.step("maintain", "replay.cleared", sizes={}))
        kill(script)
        done = made.replay(request("killed", peers))
        assert done["certificate"]["generation"] == number + 1
    return made


@pytest.mark.nightly
def test_killed_and_rescaled_it_ends_as_one_run_through(world) -> None:
    whole = world.replay(request("through", 2))["certificate"]
    assert lake_contents.rows(world.lake.table("killed")) == lake_contents.rows(
        world.lake.table("through")
    )
    assert lake_contents.rows(world.lake.table("through"))
    *_, last = [item for item in list_taken(world.lake, "places") if "killed-" in item.name]
    known = lake_contents.state(world.lake, "places", last.name)
    assert known == lake_contents.state(
        world.lake, "places", whole["pipeline"]["state"]["snapshot"]
    )
    assert known


def test_what_a_killed_attempt_has_kept_counts_for_nothing(world) -> None:
    taken = [item for item in list_taken(world.lake, "places") if "killed-" in item.name]
    assert [item.snapshot.peers for item in taken] == [3, 5, 2]
    # The first two were killed after they had written their state; the second had published.
    assert [item.name.rpartition("-")[2] for item in taken] == ["2", "1", "2"]
    there = [name for name in parts_of(world.lake, "places") if "killed-" in name]
    # That of the first attempt of all was cleared away, and whoever did it was killed.
    assert len(there) == 3
    printed = [item.history.certificate.pipeline["resumed"] for item in taken]
    assert printed == [None, taken[0].name, taken[1].name]


@pytest.mark.nightly
def test_thirty_randomly_killed_intervals_equal_one_run(growing, kill) -> None:
    made, chance, kills = growing(), random.Random(SEED), []
    print(f"CAPSTAN_STATE_SEED={SEED} has this test again")
    for number in range(INTERVALS):
        part = rows(range(number * ROWS, (number + 1) * ROWS))
        lay(made.source, f"{number:02}", part, START + timedelta(days=number))
        third, first = divmod(number * len(WORKERS), INTERVALS)
        requested = request("killed", WORKERS[third])
        # Each time that the workers are others, and in every other interval besides.
        killed = first == 0 or chance.random() < 1 / 2
        action, point = chance.choice(POINTS) if killed else ("", "")
        if action == "capture":
            kill([made.step("capture", point)])
        assert made.act("capture")["batches"] <= 1
        if action == "replay":
            kill([made.step("replay", point, request=requested)])
        kills += [(number, point)] * killed
        done = made.replay(requested)["certificate"]
        assert done["generation"] == number + 1, (SEED, kills)
    whole = made.replay(request("through", 2))["certificate"]
    assert whole["records"] > (INTERVALS - 1) * ROWS
    actual, expected = (lake_contents.rows(made.lake.table(name)) for name in ("killed", "through"))
    assert actual == expected != [], (SEED, kills)
    actual, expected = (
        lake_contents.state(made.lake, "places", item["pipeline"]["state"]["snapshot"])
        for item in (done, whole)
    )
    assert actual == expected != [], (SEED, kills)
    lake_contents.require_sound(made.spark, made.lake)
