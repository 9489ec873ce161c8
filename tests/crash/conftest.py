"""A session that finishes the work of killed drivers, and the results of uninterrupted runs.

One case of each kind of work is in the core: a single driver, killed together with its JVM,
interrupts all of these. The drivers of all other cases are attached to a JVM that outlives them.

With CAPSTAN_TEST_LAKES=s3 the lakes are on an S3 server instead of in folders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from capstan.spark.session import build_session
from capstan.storage.lake import Lake, folder
from capstan.storage.ledger.tables import SCHEMAS, make_ledger
from tests.support import child_drivers, lake_contents, small_stream
from tests.support.driver_actions import act
from tests.support.driver_under_test import Step
from tests.support.s3_server import BUCKET, objects
from tests.support.shared_jvm import Victim
from tests.support.small_spark import LASTING, MASTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.crash_cases import Work

    Kill = Callable[[Iterable[Step]], None]


@pytest.fixture(scope="session")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Lake]]:
    """Makes lakes that do not exist yet."""
    if os.environ.get("CAPSTAN_TEST_LAKES") != "s3":
        yield lambda: Lake.at(tmp_path_factory.mktemp("world") / "lake")
        return
    numbers = count()
    with (
        objects(tmp_path_factory.mktemp("objects")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        # All processes find the server by these, with and without a JVM.
        for name, value in server.variables.items():
            patch.setenv(name, value)
        yield lambda: Lake.at(f"s3a://{BUCKET}/world-{next(numbers)}/lake")


@pytest.fixture(scope="session")
def spark(lakes: Callable[[], Lake]) -> Iterator[SparkSession]:
    """The session that repeats killed work, to its end; it starts when the lakes can be reached."""
    session = build_session("capstan-tests", master=MASTER, extra=LASTING)
    yield session
    session.stop()


@dataclass(frozen=True)
class World:
    """A lake, its source, the session of this process, and a folder for the notes of drivers."""

    spark: SparkSession
    lake: Lake
    source: Path
    notes: Path

    def act(self, action: str, **more: object) -> dict[str, object]:
        return act(self.spark, action, self._arguments(**more))

    def replay(self, request: dict[str, object]) -> dict[str, object]:
        return self.act("replay", request=request)

    def step(self, action: str, point: str = "", **more: object) -> Step:
        """The same action, for another driver that is killed at `point`."""
        return Step(action, self._arguments(**more), point)

    def held(self, action: str, point: str, **more: object) -> Step:
        """The same action, for another driver that is held at `point`."""
        return Step(action, self._arguments(**more), point, str(self.notes / "go"))

    def _arguments(self, **more: object) -> dict[str, object]:
        return {"lake": self.lake.root, "source": str(self.source), **more}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stream's files, outside all lakes because checkpoints store their paths."""
    folder = tmp_path_factory.mktemp("source")
    small_stream.feed(folder)
    return folder


@pytest.fixture(scope="session")
def empty(
    spark: SparkSession,
    lakes: Callable[[], Lake],
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], World]:
    """Makes empty lakes."""

    def make() -> World:
        return World(spark, lakes(), source, tmp_path_factory.mktemp("notes"))

    return make


@pytest.fixture(scope="session")
def growing(
    spark: SparkSession, lakes: Callable[[], Lake], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], World]:
    """Makes empty lakes, each with its own source, which has no file yet."""

    def make() -> World:
        source, notes = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("notes")
        return World(spark, lakes(), source, notes)

    return make


@pytest.fixture(scope="session")
def captured(empty: Callable[[], World]) -> Lake:
    """A lake with the whole stream on tape, captured without interruption; not to be changed."""
    world = empty()
    assert world.act("capture")["batches"] == small_stream.FILES
    lake_contents.require_sound(world.spark, world.lake)
    # Tables that the first run of a lake creates, so that no test has to create them.
    for ledger in SCHEMAS:
        make_ledger(world.lake, ledger)
    return world.lake


@pytest.fixture(scope="session")
def recorded(empty: Callable[[], World], captured: Lake) -> Callable[[], World]:
    """Makes lakes with the whole stream on tape."""

    def make() -> World:
        world = empty()
        fs.copy_files(
            "",
            "",
            source_filesystem=folder(captured.root),
            destination_filesystem=folder(world.lake.root),
        )
        return world

    return make


@pytest.fixture(scope="session")
def undisturbed(captured: Lake) -> dict[str, list[str]]:
    """The contents of the tape when nothing was killed."""
    return lake_contents.tape(captured)


class Whole:
    """The result of each request of the small stream without kills, computed on first use.

    Keys are names in `REQUESTS`; `before` is the target of `staged` with other rows in it, `over`
    the same target after `staged`.
    """

    def __init__(self, recorded: Callable[[], World]) -> None:
        self._recorded = recorded
        self._world: World | None = None
        self._found: dict[str, dict[str, object]] = {}

    def __getitem__(self, name: str) -> dict[str, object]:
        if name not in self._found:
            if name in ("before", "over"):
                self._replay_over()
            else:
                self._world = self._world or self._recorded()
                self._replay(self._world, name, small_stream.REQUESTS[name])
        return self._found[name]

    def _replay_over(self) -> None:
        world = self._recorded()
        for name, request in (("before", small_stream.BEFORE), ("over", small_stream.STAGED)):
            self._replay(world, name, request)
        assert self._found["before"]["rows"] != self._found["over"]["rows"]

    def _replay(self, world: World, name: str, request: dict[str, object]) -> None:
        world.replay(request)
        self._found[name] = lake_contents.table(world.lake, str(request["into"]))
        assert self._found[name]["rows"]


@pytest.fixture(scope="session")
def whole(recorded: Callable[[], World]) -> Whole:
    return Whole(recorded)


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A JVM that outlives the drivers attached to it."""
    actual = Victim(tmp_path_factory.mktemp("victim") / "jvm")
    yield actual
    actual.stop()


@pytest.fixture(scope="session")
def kill(victim: Victim, tmp_path_factory: pytest.TempPathFactory) -> Kill:
    """Runs steps in a driver until it is killed with all of them interrupted; its JVM survives."""

    def carry_out(script: Iterable[Step]) -> None:
        folder = tmp_path_factory.mktemp("killed") / "driver"
        child = child_drivers.start(folder, list(script), victim=victim)
        try:
            child.require_killed()
        except BaseException:
            # Even after an aborted test: the next driver needs the JVM for itself.
            child.end()
            raise

    return carry_out


@pytest.fixture(scope="session")
def kill_whole(tmp_path_factory: pytest.TempPathFactory) -> Kill:
    """The same, with a driver that is killed together with its JVM."""

    def carry_out(script: Iterable[Step]) -> None:
        folder = tmp_path_factory.mktemp("killed") / "whole"
        child_drivers.start(folder, list(script)).require_killed()

    return carry_out


@pytest.fixture(scope="session")
def core(request: pytest.FixtureRequest, kill_whole: Kill) -> dict[str, World]:
    """Worlds of the selected core cases, interrupted by one driver that dies with its JVM."""
    actual, script = {}, []
    for item in request.session.items:
        work = item.callspec.params.get("work") if hasattr(item, "callspec") else None
        if work is not None and item.get_closest_marker("rest") is None:
            actual[item.nodeid] = request.getfixturevalue(work.world)()
            script += work.script(actual[item.nodeid])
    kill_whole(script)
    return actual


@pytest.fixture
def killed(request: pytest.FixtureRequest, work: Work) -> World:
    """The world in which the work of a case was interrupted."""
    if request.node.get_closest_marker("rest") is None:
        return request.getfixturevalue("core")[request.node.nodeid]
    world = request.getfixturevalue(work.world)()
    request.getfixturevalue("kill")(work.script(world))
    return world
