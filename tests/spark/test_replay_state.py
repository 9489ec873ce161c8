"""Followed pipelines with state: gone on from, rescaled, taken back, cleared, and broken."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial, update_wrapper
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from capstan.capture.run import capture
from capstan.cli import main
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.maintenance.cleanup import clear_snapshots
from capstan.maintenance.compaction import compact_table
from capstan.pipeline import KeyedLogic, definition, stateful_map
from capstan.pipeline.graph.errors import OperatorFailed, StateChanged
from capstan.pipeline.operators import Deduplicate
from capstan.pipeline.state.errors import NotWhole, SnapshotCorrupt
from capstan.replay.output.state_resume import rescale_state
from capstan.replay.planning.request import Request
from capstan.replay.publish import snapshot_gc
from capstan.replay.run import replay, rollback
from capstan.replay.snapshots import Taken, list_taken, parts_of, read_parts, write_parts
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.compaction.growing_tables import aside_tables
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId, short_name
from capstan.telemetry.instrumentation import subscribe
from tests.support import lake_contents, pipeline_samples
from tests.support.jvmless_lake import EVENT
from tests.support.pipeline_samples import REFERENCES
from tests.support.sample_streams import HOUR, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PIECE = 30
"""Rows that come between two runs: fifteen hours."""


class Followed:
    """A tape that grows piece by piece, and what follows it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.source = spark, folder / "source"
        self.stream = little_stream(self.source)
        self.lake = Lake.at(folder / "lake")
        self.declarations = replace(declared(self.stream), pipelines=REFERENCES)
        self.laid = 0

    def grow(self) -> None:
        part = rows(range(self.laid * PIECE, (self.laid + 1) * PIECE))
        lay(self.source, f"{self.laid}", part)
        capture(self.spark, self.lake, self.stream)
        self.laid += 1

    def run(self, into: str, peers: int | None = None, **more: object) -> dict[str, object]:
        given = {"pipeline": "places", "sink": "pairs", **more}
        requested = Request("little", into, follow=into, peers=peers, **given)  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declarations, requested).certificate.to_json()

    def rows(self, into: str) -> Counter[str]:
        table = pl.read_delta(self.lake.table(into))
        return Counter(json.dumps(row, default=str) for row in table.rows())

    def state(self, name: str) -> list[str]:
        return lake_contents.state(self.lake, "places", name)

    def newest(self, into: str) -> Taken:
        """The last snapshot of what is followed into a table."""
        path = self.lake.table(into)
        return list_taken(self.lake, "places", target=path)[-1]


def state_of(certificate: dict[str, object]) -> dict[str, object]:
    printed = certificate["pipeline"]
    assert isinstance(printed, dict)
    actual = printed["state"]
    assert isinstance(actual, dict)
    return actual


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    made = Followed(spark, tmp_path_factory.mktemp("state"))
    made.grow()
    return made


@pytest.mark.nightly
def test_runs_on_any_workers_end_as_one_run_through(followed: Followed) -> None:
    actual = [followed.run("pieces", peers=3)]
    for peers in (None, 2):
        followed.grow()
        actual.append(followed.run("pieces", peers))
    whole = followed.run("through", peers=2)

    assert followed.rows("pieces") == followed.rows("through")
    assert sum(followed.rows("through").values()) > 75
    names = [str(state_of(item)["snapshot"]) for item in actual]
    assert followed.state(names[-1]) == followed.state(str(state_of(whole)["snapshot"]))
    assert followed.state(names[-1])
    # Each goes on from the one before, and reads what is new alone.
    printed = [item["pipeline"] for item in actual]
    assert [item["resumed"] for item in printed] == [None, *names[:-1]]  # type: ignore[index]
    assert [state_of(item)["peers"] for item in actual] == [3, 3, 2]
    assert sum(int(str(item["records"])) for item in actual) == whole["records"]
    assert [int(str(item["records"])) for item in actual[1:]] == [PIECE] * 2
    assert state_of(actual[-1])["keys"] == state_of(whole)["keys"]
    # A snapshot has a file per replay worker at most.
    assert parts_of(followed.lake, "places")[names[-1]] == state_of(actual[-1])["parts"]
    assert followed.run("pieces") == actual[-1]


# It audits a run of the pieces above.
@pytest.mark.nightly
def test_a_run_long_past_is_audited_from_the_beginning(followed: Followed) -> None:
    run = next(item for item in list_taken(followed.lake, "places") if "pieces" in item.name)
    name = run.history.last.run
    history = require_auditable(followed.lake, name, None)
    actual = audit_run(followed.spark, followed.lake, followed.declarations, history).audit
    assert (actual.kind, actual.passed) == ("pipeline", True)


def test_a_rescaled_snapshot_is_what_the_next_run_goes_on_from(followed: Followed) -> None:
    first = followed.run("rescaled", peers=2)
    before = state_of(first)
    taken = followed.newest("rescaled")
    assert taken.name == before["snapshot"]

    class Killed(Exception):
        pass

    def kill(point: str, _: dict[str, object]) -> None:
        if point == "state.parts":
            raise Killed

    scale = (followed.spark, followed.lake, followed.declarations)
    with subscribe(kill), pytest.raises(Killed):
        rescale_state(*scale, taken, 4)
    # Its rows are there, and count for nothing.
    assert f"{taken.name}@4" in parts_of(followed.lake, "places")
    assert not followed.newest("rescaled").rescaled

    made = rescale_state(*scale, taken, 4)
    assert (made.name, made.before, made.peers) == (f"{taken.name}@4", 2, 4)
    assert made.keys == before["keys"]
    # What is the same on every worker, each of them has.
    assert set(followed.state(made.name)) == set(followed.state(taken.name))
    held = [sum(mine.values()) for mine in made.held.values()]
    assert len(held) == 4
    assert sum(held) == sum(made.keys.values())
    now = followed.newest("rescaled")
    back = rescale_state(*scale, now, 2)
    assert back.name == taken.name
    assert followed.newest("rescaled").on(None).peers == 2
    rescale_state(*scale, followed.newest("rescaled"), 4)

    followed.grow()
    second = followed.run("rescaled")
    assert second["pipeline"]["resumed"] == made.name  # type: ignore[index]
    assert state_of(second)["peers"] == 4
    followed.run("straight")
    assert followed.rows("rescaled") == followed.rows("straight")


def test_taking_a_run_back_takes_its_state_back(followed: Followed) -> None:
    first = followed.run("back", peers=2)
    before = followed.rows("back")
    followed.grow()
    second = followed.run("back")
    after = followed.rows("back")
    rollback(followed.spark, followed.lake, followed.declarations, str(second["run"]))
    assert followed.rows("back") == before
    again = followed.run("back")
    assert again["pipeline"]["resumed"] == state_of(first)["snapshot"]  # type: ignore[index]
    assert followed.rows("back") == after


CHUNKS = "kind = 'chunk' AND rows > 0"
DAMAGE: list[tuple[str, dict[str, str], type[Exception]]] = [
    (f"{CHUNKS} AND node = 'visits'", {}, NotWhole),
    ("kind = 'head' AND worker = 1", {}, NotWhole),
    (CHUNKS, {"data": "X'00'"}, SnapshotCorrupt),
    (CHUNKS, {"rows": "rows + 1"}, NotWhole),
    ("kind = 'chunk'", {"worker": "1 - worker"}, NotWhole),
]
"""Rows of a state, and what is done to them: they are changed, or gone."""


def damage(path: str, rows: str, changes: dict[str, str]) -> None:
    table = delta.open_table(path)
    done = table.update(changes, predicate=rows) if changes else table.delete(rows)
    assert done[f"num_{'updated' if changes else 'deleted'}_rows"] > 0


@pytest.mark.nightly
def test_a_state_that_cannot_be_read_back_stops_the_run(followed: Followed) -> None:
    followed.run("broken", peers=2)
    before = followed.rows("broken")
    followed.grow()
    path = followed.lake.state("places")
    whole = delta.version_of(path)
    for part, changes, error in DAMAGE:
        damage(path, part, changes)
        with pytest.raises(error) as caught:
            followed.run("broken")
        assert caught.value.exit_code == 2  # type: ignore[attr-defined]
        assert followed.rows("broken") == before
        delta.open_table(path).restore(whole)
    followed.run("broken", peers=3)
    followed.run("unbroken")
    assert followed.rows("broken") == followed.rows("unbroken") != before


def test_a_state_that_cannot_be_written_stops_the_run(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    amounts = pa.schema([("amount", pa.int32())])
    unkept = KeyedLogic(stateful_map(pipeline_samples.unkept), ("place",), ("amount",), amounts)
    graph = update_wrapper(partial(pipeline_samples._one, unkept), pipeline_samples.firsts)
    monkeypatch.setitem(definition._registered, f"{pipeline_samples.__name__}:firsts", graph)
    with pytest.raises(OperatorFailed, match="StateLost"):
        followed.run("unkept", pipeline="firsts", sink=None)
    path = followed.lake.table("unkept")
    assert lake_contents.rows(path) == []
    assert list_taken(followed.lake, "firsts", target=path) == []


def test_a_changed_pipeline_s_state_is_not_resumed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = {"pipeline": "firsts", "sink": None}
    kept = state_of(followed.run("kept", **requested))["snapshot"]
    followed.grow()
    before = followed.rows("kept")
    (taken,) = list_taken(followed.lake, "firsts", target=followed.lake.table("kept"))
    with monkeypatch.context() as changed:
        graph = partial(pipeline_samples._one, Deduplicate(("place",), within=HOUR))
        other = update_wrapper(graph, pipeline_samples.firsts)
        changed.setitem(definition._registered, f"{pipeline_samples.__name__}:firsts", other)
        with pytest.raises(StateChanged, match="changed .* within was None, and is 36000000"):
            followed.run("kept", **requested)
        with pytest.raises(StateChanged, match="op has changed since"):
            rescale_state(followed.spark, followed.lake, followed.declarations, taken, 2)
    assert followed.rows("kept") == before
    done = followed.run("kept", **requested)
    assert done["pipeline"]["resumed"] == kept  # type: ignore[index]


@pytest.mark.nightly
def test_the_command_rescales_one_table_s_state(
    followed: Followed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = {"pipeline": "firsts", "sink": None, "peers": 2}
    for into in ("one", "other"):
        followed.run(into, **requested)
    declared = tmp_path / "streams.yaml"
    declared.write_text(f"pipelines: {{firsts: {REFERENCES['firsts']!r}}}", encoding="utf-8")
    words = ["--lake", followed.lake.root, "--config", str(declared), "--json", "state", "firsts"]
    assert main([*words, "rescale", "3"]) == 2
    capsys.readouterr()
    assert main([*words, "rescale", "3", "--into", "other"]) == 0
    [made] = json.loads(capsys.readouterr().out)["rescaled"]
    assert (made["before"], made["peers"], made["keys"]) == (2, 3, {"op": 3})
    peers = {
        into: list_taken(followed.lake, "firsts", target=followed.lake.table(into))[-1].newest
        for into in ("one", "other")
    }
    assert peers == {"one": 2, "other": 3}


@pytest.mark.nightly
def test_snapshots_that_no_run_goes_on_from_are_cleared(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_gc, "KEEP", 1)
    monkeypatch.setattr(snapshot_gc, "_SLACK", 1)
    names = []
    for _ in range(3):
        followed.grow()
        names.append(str(state_of(followed.run("many", peers=1))["snapshot"]))
    there = [name for name in parts_of(followed.lake, "places") if name in names]
    # The second had one too many, which was let be; the third has two.
    assert there == names[2:]
    taken = {item.name: item for item in list_taken(followed.lake, "places")}
    assert [taken[name].cleared for name in names] == [True, True, False]
    run = names[2].rpartition("-")[0]
    rollback(followed.spark, followed.lake, followed.declarations, run)
    # The snapshot that it would go on from is gone: all is read again, and comes out the same.
    done = followed.run("many")
    assert done["pipeline"]["resumed"] is None  # type: ignore[index]
    followed.run("many_through", peers=2)
    assert followed.rows("many") == followed.rows("many_through")
    others = lake_contents.read_by_others(followed.lake)
    assert others >= {"state/places", "ledger/snapshots", "aside/places", "ledger/metrics"}


def test_a_pipeline_with_no_end_reads_each_record_once(followed: Followed) -> None:
    first = followed.run("firsts", pipeline="firsts", sink=None)
    followed.grow()
    second = followed.run("firsts", pipeline="firsts", sink=None, peers=2)
    assert int(str(second["records"])) == PIECE
    assert sum(followed.rows("firsts").values()) == 3
    assert state_of(first)["keys"] == state_of(second)["keys"] == {"op": 3}


def test_what_an_audit_finds_out_leaves_no_state_that_counts(followed: Followed) -> None:
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        followed.run("wrong", pipeline="unsteady", sink=None, peers=3)
    assert [item for item in list_taken(followed.lake, "unsteady") if item.standing] == []
    assert parts_of(followed.lake, "unsteady")


def test_rows_aside_become_few_files(followed: Followed) -> None:
    [aside] = [table for table in aside_tables(followed.lake) if table.name == "aside places"]
    before = lake_contents.rows(aside.path)
    done = compact_table(followed.spark, replace(aside, sizes=replace(aside.sizes, many=2)))
    assert (done.table, done.files, done.rewritten > 0) == ("aside places", 1, True)
    assert done.files_before > 2
    assert lake_contents.rows(aside.path) == before


def test_maintenance_clears_unused_state_and_spares_runs(followed: Followed) -> None:
    spark, lake = followed.spark, followed.lake
    left = parts_of(lake, "unsteady")
    assert left
    assert sorted(clear_snapshots(spark, lake, "unsteady")) == sorted(left)
    assert parts_of(lake, "unsteady") == {}

    # The next run of one of them has written its state, and has not published.
    followed.run("at_work", peers=2)
    newest = followed.newest("at_work")
    last = newest.history.last
    run = RunId(last.identity, last.generation + 1, short_name(last.target))
    everything = Region(Box.everything(EVENT))
    attempt = claims.claim(lake, run, "little", Scope(last.target, None, everything))
    mine = f"{run.name}-{attempt}"
    parts = read_parts(spark, lake, newest.snapshot)
    assert parts is not None
    write_parts(spark, lake, replace(newest.snapshot, name=mine), parts)
    kept = {item.name for item in list_taken(lake, "places") if item.standing}
    clear_snapshots(spark, lake, "places")
    assert mine in parts_of(lake, "places")
    claims.release(lake, run.name, attempt)
    assert clear_snapshots(spark, lake, "places") == [mine]
    assert clear_snapshots(spark, lake, "places") == []
    standing = {item.name for item in list_taken(lake, "places") if item.standing}
    assert standing <= kept
    assert newest.name in standing
    followed.grow()
    assert followed.run("at_work")["pipeline"]["resumed"] == newest.name  # type: ignore[index]


@pytest.mark.nightly
def test_the_state_of_a_run_that_has_published_unsaid_is_kept(followed: Followed) -> None:
    """Whoever goes on with it finds its publish, and then the next run goes on from its state."""
    errors: list[type[BaseException]] = [OSError, KeyboardInterrupt]
    before = None
    # One that has failed after its publish says so; one that is interrupted gives up its claim.
    for error in errors:

        def cut_off(point: str, _: object, error: type[BaseException] = error) -> None:
            if point == "replay.publish":
                raise error

        followed.grow()
        with pytest.raises(error), subscribe(cut_off):
            followed.run("unsaid")
        cleared = clear_snapshots(followed.spark, followed.lake, "places")
        assert [name for name in cleared if name.startswith("unsaid")] == []
        done = followed.run("unsaid")
        assert done["pipeline"]["resumed"] == before  # type: ignore[index]
        before = state_of(done)["snapshot"]
    followed.run("unsaid_through")
    assert followed.rows("unsaid") == followed.rows("unsaid_through")
