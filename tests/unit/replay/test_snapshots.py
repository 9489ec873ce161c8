"""Which snapshot a followed pipeline goes on from, by the ledgers; and the command `state`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from capstan.cli import main
from capstan.core.times import Antichain, Time
from capstan.pipeline.graph.errors import StateChanged
from capstan.pipeline.graph.signature import Signatures
from capstan.pipeline.registry import Pipelines
from capstan.pipeline.state.errors import NotWhole
from capstan.replay.planning.cursor import find_cursor
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.snapshots import Snapshot, find_snapshot, list_taken, parts_of, read_parts
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import History, read_last_published
from tests.support.jvmless_lake import Books, intent_json, lay_tape
from tests.support.pipeline_samples import REFERENCES
from tests.support.sample_streams import NAME, declared, little_stream

if TYPE_CHECKING:
    from pathlib import Path

HOUR_US = 3_600_000_000
DECLARED = "pipelines: {places: 'tests.support.pipeline_samples:places'}"


class Followed:
    """The ledgers of a followed pipeline."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake.at(root)
        lay_tape(self.lake, NAME, ["a"], [(n * HOUR_US,) for n in range(4)], (3 * HOUR_US,))
        self.books = Books(self.lake, NAME, self.lake.table("t"))
        self.runs = 0

    def publish(self, peers: int = 3, signatures: Signatures | None = None) -> Snapshot:
        """Another run, with its snapshot."""
        self.runs += 1
        run, reached = f"t-id-{self.runs}", Antichain.of([Time((self.runs * HOUR_US,))])
        last = self.runs * HOUR_US
        held = {str(worker): {"op": 6 // peers} for worker in range(peers)}
        name = f"{run}-1"
        made = Snapshot(
            name, "places", peers, reached, last, 4, 9, 1, 800, held, signatures=signatures
        )
        requested = Request(NAME, "t", pipeline="places", sink="pairs", follow="f")
        intent = intent_json(requested, reached.elements)
        printed = {"name": "places", "sink": "pairs", "state": made.to_json()}
        done = {"attempt": 1, "target_version": self.runs, "pipeline": printed}
        self.step(run, "intent", intent)
        self.step(run, "done", done)
        return made

    def step(self, run: str, step: str, detail: dict[str, object]) -> None:
        self.books.stepped(run, step, detail, identity="id", generation=int(run[-1]))

    @property
    def last(self) -> History | None:
        return read_last_published(self.lake, "id", self.books.target)

    def chosen(self, peers: int | None = None) -> str | None:
        last = self.last
        assert last is not None
        actual = find_snapshot(self.lake, last, peers)
        return actual and actual.name


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "lake")


def rescaled(taken: Snapshot, peers: int) -> dict[str, object]:
    name = f"{taken.name}@{peers}"
    return replace(taken, name=name, peers=peers, before=taken.peers).to_json()


def test_a_run_goes_on_from_the_newest_that_stands(followed: Followed) -> None:
    first, second = followed.publish(), followed.publish()
    assert followed.chosen() == second.name
    request = Request(NAME, "t", pipeline="places", sink="pairs", follow="f")
    cursor = find_cursor(
        followed.lake, request, read_last_published(followed.lake, "id", followed.books.target)
    )
    assert cursor is not None
    assert cursor.resumed == second
    assert cursor.reached == Antichain.of([Time((2 * HOUR_US,))])
    followed.step("t-id-2", "rolled-back", {})
    assert followed.chosen() == first.name


def test_one_on_as_many_workers_as_are_wanted_is_chosen(followed: Followed) -> None:
    taken = followed.publish()
    followed.books.became("places", taken.name, "rescaled", rescaled(taken, 5))
    followed.books.became("places", taken.name, "rescaled", rescaled(taken, 2))
    assert followed.chosen() == f"{taken.name}@2"
    assert followed.chosen(5) == f"{taken.name}@5"
    assert followed.chosen(3) == taken.name
    # Of none that is there: it has to be dealt, from the newest.
    assert followed.chosen(4) == f"{taken.name}@2"
    followed.publish()
    assert followed.chosen() == "t-id-2-1"


def test_one_that_was_cleared_is_not_gone_on_from(followed: Followed) -> None:
    taken = followed.publish()
    followed.books.became("places", taken.name, "cleared")
    assert followed.chosen() is None
    [listed] = list_taken(followed.lake, "places")
    assert (listed.cleared, listed.standing) == (True, False)
    assert list_taken(followed.lake, "others") == []


def test_a_snapshot_comes_back_from_json_as_it_was(followed: Followed) -> None:
    taken = followed.publish()
    assert Snapshot.from_json(json.loads(json.dumps(taken.to_json()))) == taken
    dealt = rescaled(taken, 5)
    assert Snapshot.from_json(dealt).before == 3


def test_snapshots_with_missing_rows_are_not_read(followed: Followed) -> None:
    taken, other = followed.publish(), followed.publish()
    path = followed.lake.state("places")

    def keep(name: str, rows: int) -> None:
        # Rows that wait for their time: no head counts them, the certificate alone does.
        kept = pa.table({"snapshot": [name] * rows, "kind": ["ahead"] * rows})
        deltalake.write_deltalake(path, kept, mode="append", partition_by=["snapshot"])

    keep(taken.name, 3)
    keep(other.name, 4)
    # No session: what is not all there is refused before Spark works.
    with pytest.raises(NotWhole, match=f"{taken.name} has 3 of 4 rows") as few:
        read_parts(None, followed.lake, taken)  # type: ignore[arg-type]
    assert few.value.fields["reason"] == "rows are missing"
    keep(taken.name, 2)
    with pytest.raises(NotWhole, match=f"{taken.name} has 5 of 4 rows"):
        read_parts(None, followed.lake, taken)  # type: ignore[arg-type]
    assert parts_of(followed.lake, "places") == {taken.name: 5, other.name: 4}
    assert read_parts(None, followed.lake, replace(taken, parts=0)) is None  # type: ignore[arg-type]


@pytest.fixture
def state(followed: Followed, tmp_path: Path, monkeypatch, capsys):
    """Run `capstan state --json` in that lake; the exit code and the object."""
    (tmp_path / "streams.yaml").write_text(DECLARED, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_LAKE", followed.lake.root)
    monkeypatch.setenv("CAPSTAN_CONFIG", str(tmp_path / "streams.yaml"))

    def run(*words: str):
        code = main(["state", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_snapshots_are_listed(followed: Followed, state, capsys) -> None:
    assert state("places") == (0, {"pipeline": "places", "snapshots": []})
    first, second = followed.publish(), followed.publish(2)
    followed.step("t-id-2", "rolled-back", {})
    followed.books.became("places", first.name, "rescaled", rescaled(first, 6))
    code, actual = state("places", "--into", "t")
    assert code == 0
    rows = [(row["snapshot"], row["is"], row["peers"], row["keys"]) for row in actual["snapshots"]]
    assert rows == [(f"{first.name}@6", "stands", 6, 6), (second.name, "was taken back", 2, 6)]
    assert actual["snapshots"][0]["frontier"] == ["1970-01-01T01:00:00.000000Z"]
    assert state("places", "--into", "other")[1]["snapshots"] == []
    assert main(["state", "places"]) == 0
    assert "stands" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("plces",), "CAP-PIPELINE", "did you mean 'places'"),
        (("places", "drop", "3"), "CAP-USAGE", "drop"),
        (("places", "rescale"), "CAP-USAGE", "rescale"),
        (("places", "rescale", "0"), "CAP-USAGE", "'N'"),
        (("places", "rescale", "4"), "CAP-STATE", "no snapshot"),
    ],
)
def test_what_cannot_be_done_with_state_is_refused_without_a_jvm(state, words, code, said) -> None:
    ended, error = state(*words)
    assert (ended, error["error"]) == (2, code)
    assert said in error["message"]


def test_which_of_several_tables_is_rescaled_has_to_be_said(followed: Followed, state) -> None:
    followed.publish()
    elsewhere = Followed.__new__(Followed)
    elsewhere.lake, elsewhere.runs = followed.lake, 1
    elsewhere.books = Books(followed.lake, NAME, followed.lake.table("u"))
    elsewhere.publish()
    ended, error = state("places", "rescale", "4")
    assert (ended, error["error"]) == (2, "CAP-STATE")
    assert error["targets"] == [followed.lake.table("t"), followed.lake.table("u")]
    assert "--into" in error["hint"]
    ended, error = state("places", "rescale", "4", "--into", "v", "--into", "w")
    assert (ended, error["message"]) == (
        2, "pipeline places has no snapshot that a run could continue from"
    )  # fmt: skip
    assert len(state("places", "--into", "t", "--into", "u")[1]["snapshots"]) == 2
    assert len(state("places", "--into", "u")[1]["snapshots"]) == 1


def test_a_changed_pipeline_is_refused_before_spark_starts(
    followed: Followed, tmp_path: Path
) -> None:
    declarations = replace(declared(little_stream(tmp_path)), pipelines=REFERENCES)
    kept = Pipelines(references=REFERENCES).get("places").signatures("pairs")
    request = Request(NAME, "t", pipeline="places", sink="pairs", follow="f")

    def resumed() -> str | None:
        cursor = find_cursor(
            followed.lake, request, read_last_published(followed.lake, "id", followed.books.target)
        )
        plan = make_plan(followed.lake, declarations, request, cursor=cursor)
        assert isinstance(plan.computation, PipelineComputation)
        resumed = plan.computation.resumed
        return resumed and resumed.name

    first = followed.publish(signatures=kept)
    assert resumed() == first.name
    changed = {name: dict(item) for name, item in kept.items()}
    changed["visits"]["gap"] = "7"
    followed.publish(signatures=changed)
    with pytest.raises(StateChanged, match="visits has changed") as caught:
        resumed()
    assert caught.value.exit_code == 2
    assert caught.value.fields == {"node": "visits", "reason": "gap was 7, and is 7200000000"}
    followed.step("t-id-2", "rolled-back", {})
    assert resumed() == first.name
    # Of what was taken before there were signatures nothing is known.
    third = followed.publish()
    assert resumed() == third.name
    del changed["odd"]
    followed.publish(signatures=changed | {"visits": kept["visits"]})
    with pytest.raises(StateChanged, match="odd has changed since .* it is new"):
        resumed()
