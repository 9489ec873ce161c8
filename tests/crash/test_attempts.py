"""Two drivers at one piece of work, or side by side: one wins, and the other one knows."""

from __future__ import annotations

import threading
import traceback

import pytest

from capstan.errors import RangeLockedError
from capstan.storage.delta import delta
from capstan.telemetry import instrumentation
from tests.support import child_drivers, lake_contents, small_stream
from tests.support.small_stream import REQUESTS, STAGED

pytestmark = [pytest.mark.rest, pytest.mark.timeout(1800)]

TAKEN_OVER = [
    ("staged", "replay.audit"),
    # It has seen that its claim stands, and is about to commit.
    pytest.param("merge", "replay.holds", marks=pytest.mark.nightly),
    pytest.param("append", "replay.holds", marks=pytest.mark.nightly),
    pytest.param("staged", "replay.holds", marks=pytest.mark.nightly),
]
CAPTURES = [
    "capture.records:2",
    pytest.param("capture.workers:2", marks=pytest.mark.nightly),
    pytest.param("capture.events:2", marks=pytest.mark.nightly),
]
FOLLOW = {**REQUESTS["follow"], "mode": "append"}


@pytest.fixture
def hold(victim, tmp_path):
    """Has another driver do something until it is held at a point, and at the end of the test."""
    begun: list[child_drivers.Child] = []

    def begin(world, action: str, point: str, *before, **more) -> child_drivers.Held:
        step = world.held(action, point, **more)
        child = child_drivers.start(tmp_path / "driver", [*before, step], victim=victim)
        begun.append(child)
        child.wait_for(step.held)
        return child_drivers.Held(child, step)

    yield begin
    for child in begun:
        child.end()


def require_fenced(other: child_drivers.Held) -> None:
    """Let a held action go on, and check that it ends as fenced."""
    result = other.release()
    assert (result["exit"], result["error"]) == (5, "CAP-FENCED"), result


@pytest.mark.parametrize(("name", "point"), TAKEN_OVER)
def test_an_attempt_that_was_taken_over_ends_as_fenced(recorded, hold, whole, name, point) -> None:
    world = recorded()
    first = hold(world, "replay", point, request=REQUESTS[name])
    target = REQUESTS[name]["into"]
    run = world.replay(REQUESTS[name])["run"]
    version = delta.version_of(world.lake.table(target))
    require_fenced(first)
    assert lake_contents.table(world.lake, target) == whole[name]
    assert delta.version_of(world.lake.table(target)) == version
    lake_contents.require_published_once(world.lake, run)


def test_an_overtaken_attempt_publishes_nothing(recorded, hold, whole) -> None:
    """The first has not even made the target when the second begins: that is fenced as well."""
    world = recorded()
    first = hold(world, "replay", "replay.claim", request=REQUESTS["append"])

    def wake(point: str, _facts: dict[str, object]) -> None:
        if point == "replay.audit":
            require_fenced(first)

    with instrumentation.subscribe(wake):
        run = world.replay(REQUESTS["append"])["run"]
    assert lake_contents.table(world.lake, REQUESTS["append"]["into"]) == whole["append"]
    lake_contents.require_published_once(world.lake, run)


def test_an_overtaken_followed_run_leaves_the_cursor(growing, hold) -> None:
    """The first pins fewer times than the second, and says so only after it."""
    world = growing()
    small_stream.feed(world.source, 2)
    first = hold(world, "replay", "replay.claim", world.step("capture"), request=FOLLOW)
    small_stream.feed(world.source, 2, first=2)
    world.act("capture")
    run = world.replay(FOLLOW)["run"]
    require_fenced(first)
    rows = lake_contents.rows(world.lake.table("followed"))
    again = world.replay(FOLLOW)
    assert (again["run"], again["unchanged"]) == (run, True)
    assert lake_contents.rows(world.lake.table("followed")) == rows
    lake_contents.require_published_once(world.lake, run)


def test_disjoint_runs_at_once_both_land(recorded, whole) -> None:
    """They make the ledgers, the target, and publish, each at the same moment."""
    world = recorded()
    requests = [{**STAGED, "workers": [label]} for label in ("north", "west")]
    at_once(world, requests, ["verify.events", "replay.claim", "replay.audit"])
    assert lake_contents.rows(world.lake.table("staged")) == whole["staged"]["rows"]


def test_runs_over_disjoint_times_at_once_both_land(recorded, whole) -> None:
    """Their rows lie in the same partitions: the loser of the race publishes again."""
    world = recorded()
    middle = "2024-03-01T06:00:00Z"
    requests = [{**STAGED, "until": middle}, {**STAGED, "since": middle}]
    at_once(world, requests, ["replay.claim", "replay.audit"])
    assert lake_contents.rows(world.lake.table("staged")) == whole["staged"]["rows"]


def at_once(world, requests: list[dict[str, object]], points: list[str]) -> None:
    """Replay in as many threads, which wait for each other at each of the points."""
    barriers = {point: threading.Barrier(len(requests), timeout=300) for point in points}
    ended: list[str] = []
    failed: list[str] = []

    def meet(point: str, _facts: dict[str, object]) -> None:
        if point in barriers:
            barriers[point].wait()

    def run(request: dict[str, object]) -> None:
        try:
            ended.append(world.replay(request)["run"])
        except Exception:
            failed.append(traceback.format_exc())
            for barrier in barriers.values():
                barrier.abort()

    with instrumentation.subscribe(meet):
        threads = [threading.Thread(target=run, args=[request]) for request in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed, "\n".join(failed)
    for item in ended:
        lake_contents.require_published_once(world.lake, item)


def test_of_overlapping_runs_one_lands_and_the_other_names_it(recorded, hold, whole) -> None:
    world = recorded()
    first = hold(world, "replay", "replay.claim", request=STAGED)
    other = {**STAGED, "workers": ["south", "west"], "until": "2024-03-01T04:00:00Z"}
    with pytest.raises(RangeLockedError) as refused:
        world.replay(other)
    assert (refused.value.code, refused.value.exit_code) == ("CAP-HELD", 4)
    landed = first.release()
    assert landed["exit"] == 0, landed
    assert refused.value.fields["holder"] == landed["run"]
    assert lake_contents.table(world.lake, "staged") == whole["staged"]
    lake_contents.require_published_once(world.lake, landed["run"])
    lake_contents.require_published_once(world.lake, world.replay(other)["run"])


@pytest.mark.parametrize("point", CAPTURES)
def test_one_of_two_concurrent_captures_is_fenced(empty, hold, undisturbed, point) -> None:
    world = empty()
    first = hold(world, "capture", point)
    world.act("capture")
    require_fenced(first)
    assert lake_contents.tape(world.lake) == undisturbed
    lake_contents.require_sound(world.spark, world.lake)
    assert world.act("capture") == {"batches": 0, "fed": 0, "records": 0}
