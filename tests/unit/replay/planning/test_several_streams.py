"""Replays of several streams as they are planned, without a JVM: frontiers, cuts, refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.airflow.lake_queries import streams_of
from capstan.backfill.interval import IntervalState
from capstan.backfill.planner import BackfillRequest, plan_replays
from capstan.backfill.survey import survey
from capstan.cli import main
from capstan.cli.options import workers_by_source
from capstan.core.config import ProjectConfig, Replay
from capstan.core.config.loading.validation import read_request
from capstan.core.config.stream_names import STREAMS_PATTERN
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.maintenance.retire import _require_idle
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.planning.cursor import Cursor
from capstan.replay.planning.intent import Intent, Placement
from capstan.replay.planning.plan import Plan, request_at_cuts
from capstan.replay.planning.planner import make_plan, nothing_new
from capstan.replay.planning.request import Request, with_stream
from capstan.replay.preview import preview
from capstan.reporting import listings
from capstan.reporting.html import render
from capstan.reporting.lists.run_search import RunSearch
from capstan.reporting.lists.table_view import list_tables
from capstan.reporting.run_heads import read_heads
from capstan.reporting.summaries import certificate_facts, plan_facts
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.retirements import RetirementState, write_retired
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.tape.index import newest_cut
from capstan.storage.tape.tape import open_tape
from tests.support.jvmless_lake import Books, go_on, lay_tape
from tests.support.several_streams import REFERENCES

HOUR_US = 3_600_000_000
STREAMS = {"orders": "orders_eu", "payments": "payments"}
LATE = pa.schema(
    [
        ("reason", pa.string()),
        ("worker", pa.int32()),
        ("batch", pa.int64()),
        ("time", pa.struct([("event", pa.timestamp("us", "UTC"))])),
    ]
)
JOINED = Replay(name="joined", streams=STREAMS, target="t", pipeline="paid")  # type: ignore[call-arg]


def hour(number: int) -> str:
    return f"1970-01-01T{number:02}:00:00Z"


class Two:
    """Orders of ten hours, complete before the eighth; payments that lag behind at the sixth."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake.at(root)
        times = [(n * HOUR_US,) for n in range(10)]
        lay_tape(self.lake, "orders_eu", ["a", "b"], times, (8 * HOUR_US,))
        lay_tape(self.lake, "payments", ["a", "b", "c"], times[1:], (6 * HOUR_US,))
        for name in STREAMS.values():
            paths = self.lake.stream(name)
            for path in (paths.late, paths.records):
                deltalake.DeltaTable.create(path, LATE)
        self.declarations = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {}, REFERENCES)

    def request(self, pipeline: str = "paid", **asked: object) -> Request:
        streams = asked.pop("streams", STREAMS)
        return Request.of_streams(streams, "t", pipeline=pipeline, **asked)  # type: ignore[arg-type]

    def plan(self, pipeline: str = "paid", **asked: object) -> Plan:
        return make_plan(self.lake, self.declarations, self.request(pipeline, **asked))


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def end_of(plan: Plan) -> int | None:
    until = plan.region.simplified().box.until[0]
    return None if until is None else until // HOUR_US


def test_a_time_is_complete_when_it_is_complete_in_all(two: Two) -> None:
    plan = two.plan()
    assert plan.frontier == Antichain.of([Time((6 * HOUR_US,))])
    assert end_of(plan) == 6
    assert plan.reads.simplified().box.until == (6 * HOUR_US,)
    assert two.plan(until=hour(6)).complete
    with pytest.raises(IncompleteError, match="^CAP-INCOMPLETE: stream payments: ") as caught:
        two.plan(until=hour(7)).require_complete()
    assert "06:00" in str(caught.value)
    go_on(two.lake, "payments", [(7 * HOUR_US,)], (12 * HOUR_US,))
    with pytest.raises(IncompleteError, match="stream orders_eu: .*08:00"):
        two.plan(until=hour(9)).require_complete()
    # One that is closed holds nothing back.
    go_on(two.lake, "payments", [], None)
    assert end_of(two.plan()) == 8


def test_the_order_in_which_streams_are_named_means_nothing(two: Two) -> None:
    turned = dict(reversed(STREAMS.items()))
    plan, other = two.plan(), two.plan(streams=turned)
    assert plan.request.stream == other.request.stream == "orders_eu+payments"
    assert plan.identity == other.identity
    assert [item.source for item in other.inputs] == ["orders", "payments"]


def test_an_identity_has_the_cuts_of_all(two: Two) -> None:
    before = two.plan(until=hour(5))
    go_on(two.lake, "payments", [(7 * HOUR_US,)], (8 * HOUR_US,))
    after = two.plan(until=hour(5))
    assert (before.inputs.cuts, after.inputs.cuts) == (
        {"orders": 0, "payments": 0},
        {"orders": 0, "payments": 1},
    )
    pinned = two.plan(until=hour(5), cuts={"payments": 0})
    assert pinned.identity == before.identity != after.identity
    swapped = {"orders": "payments", "payments": "orders_eu"}
    assert two.plan(until=hour(5), streams=swapped).identity not in {
        before.identity,
        after.identity,
    }
    assert request_at_cuts(after).cuts == after.inputs.cuts


def test_sources_may_read_one_stream(two: Two) -> None:
    plan = two.plan(streams={"orders": "payments", "payments": "payments"})
    assert [item.cut.commit for item in plan.inputs] == [0, 0]
    assert plan.request.stream == "payments+payments"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"streams": {"orders": "orders_eu"}}, "streams names orders_eu alone"),
        (
            {"streams": {**STREAMS, "clicks": "payments"}},
            "reads orders, payments, and the replay names streams for clicks, orders, payments",
        ),
        (
            {"streams": {"order": "orders_eu", "payments": "payments"}},
            "reads orders, payments, and the replay names streams for order, payments",
        ),
        ({"streams": {"orders/eu": "orders_eu", "payments": "payments"}}, "'orders/eu' does not"),
        ({"streams": {**STREAMS, "orders/payments": "payments"}}, "'orders/payments' does not"),
        ({"streams": {"orders": ["orders_eu", "payments"]}}, "the replay names streams for orders"),
        ({"as_of": 0}, "--as-of of several streams names one cut"),
        ({"cuts": {"clicks": 0}}, "there is no source clicks with a cut"),
        ({"pipeline": None}, "a replay has streams but no pipeline"),
        (
            {"pipeline": "paid_by_worker"},
            "keeps the worker, but streams orders_eu and payments have different workers",
        ),
    ],
)
def test_what_cannot_be_played_together_is_refused(
    two: Two, asked: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        two.plan(**{"pipeline": "paid", **asked})  # type: ignore[arg-type]
    assert caught.value.code == "CAP-STREAMS"


def test_a_pipeline_of_several_needs_them_by_name(two: Two) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-STREAMS: .* names one stream") as caught:
        make_plan(two.lake, two.declarations, Request("orders_eu", "t", pipeline="paid"))
    assert caught.value.hint == ("name a stream for each source, as orders=STREAM,payments=STREAM")
    with pytest.raises(InvalidRequestError, match="has a stream and streams.*clicks"):
        Request("clicks", "t", pipeline="paid", streams=STREAMS)
    with pytest.raises(InvalidRequestError, match="^CAP-STREAMS: cuts are those of several"):
        Request("orders_eu", "t", cuts={"orders": 1})


def test_a_source_reads_several_streams_as_one(two: Two) -> None:
    lay_tape(two.lake, "orders_us", ["x"], [(n * HOUR_US,) for n in range(5)], (5 * HOUR_US,))
    plan = two.plan(streams={**STREAMS, "orders": ["orders_eu", "orders_us"]}, peers=1)
    assert [item.source for item in plan.inputs] == [
        "orders/orders_eu",
        "orders/orders_us",
        "payments",
    ]
    assert plan.request.stream == "orders_eu+orders_us+payments"
    assert end_of(plan) == 5
    assert plan.inputs.cuts == {"orders/orders_eu": 0, "orders/orders_us": 0, "payments": 0}
    assert plan.identity != two.plan().identity
    again = Request.from_json(json.loads(json.dumps(request_at_cuts(plan).to_json())))
    assert make_plan(two.lake, two.declarations, again).identity == plan.identity


def test_streams_with_other_times_are_refused_by_name(two: Two) -> None:
    counted = TimeType.of(epoch=Kind.BIGINT)
    lay_tape(two.lake, "clicks", ["a"], [(1,)], (3,), time_type=counted)
    with pytest.raises(
        InvalidRequestError, match="^CAP-STREAMS: streams clicks and payments have "
    ):
        two.plan(streams={"orders": "clicks", "payments": "payments"})


def test_a_range_has_whole_steps_of_all_streams(two: Two) -> None:
    lay_tape(two.lake, "daily", ["a"], [(0,)], (48 * HOUR_US,), every=HOUR_US)
    streams = {"orders": "orders_eu", "payments": "daily"}
    assert two.plan(streams=streams, since=hour(3)).inputs.step == HOUR_US
    with pytest.raises(InvalidRequestError, match="^CAP-GRAIN: stream daily"):
        two.plan(streams=streams, since="1970-01-01T03:30:00Z")


def test_workers_are_chosen_in_all_streams_that_have_the_same(two: Two) -> None:
    times = [(n * HOUR_US,) for n in range(4)]
    lay_tape(two.lake, "refunds", ["a", "b"], times, (4 * HOUR_US,))
    plan = two.plan(
        "paid_by_worker", streams={"orders": "orders_eu", "payments": "refunds"}, workers=("b",)
    )
    assert [item.workers for item in plan.inputs] == [{1: "b"}, {1: "b"}]
    assert plan.scope.workers == (1,)
    assert not plan.inputs.everyone
    with pytest.raises(InvalidRequestError, match="^CAP-WORKERS: .*mixes workers"):
        two.plan(workers=("a", "b"))


def test_streams_with_different_workers_share_the_common(two: Two) -> None:
    item = {"orders": ("a", "b"), "payments": ("b", "a")}
    plan = two.plan("paid_by_worker", workers_of=item)
    assert [set(stream.workers.values()) for stream in plan.inputs] == [{"a", "b"}] * 2
    assert two.plan("paid_by_worker", workers=("a", "b")).identity == plan.identity
    one = two.plan("paid_by_worker", workers_of={"orders": ("a",), "payments": ("a",)})
    assert one.scope.workers == (0,)
    with pytest.raises(InvalidRequestError, match="orders_eu and payments have different workers"):
        two.plan("paid_by_worker", workers_of={**item, "payments": ("a", "c")})
    lay_tape(two.lake, "turned", ["b", "a"], [], (8 * HOUR_US,))
    with pytest.raises(InvalidRequestError, match="orders_eu and turned have different workers"):
        two.plan("paid_by_worker", workers=("a",), streams={**STREAMS, "payments": "turned"})


def test_rows_can_keep_the_workers_of_one_source(two: Two) -> None:
    everyone = two.plan("paid_by_seller")
    assert everyone.inputs.everyone
    assert everyone.scope.workers == (0, 1)
    plan = two.plan("paid_by_seller", workers_of={"orders": ("b",)})
    assert [item.workers for item in plan.inputs] == [{1: "b"}, {0: "a", 1: "b", 2: "c"}]
    assert (plan.inputs.workers, plan.scope.workers) == ({1: "b"}, (1,))
    # Workers without a stream are those of the source that keeps them.
    assert two.plan("paid_by_seller", workers=("b",)).identity == plan.identity
    assert plan.identity != everyone.identity
    with pytest.raises(InvalidRequestError, match="mixes the workers of stream payments") as caught:
        two.plan("paid_by_seller", workers_of={"payments": ("a",)})
    assert (caught.value.code, caught.value.hint) == (
        "CAP-WORKERS",
        "replay all workers of source payments",
    )
    draft = draft_certificate(plan, [stream.content(plan.reads) for stream in plan.inputs])
    value = json.loads(json.dumps(draft.to_json()))
    assert [(part["workers"], part["left_out"]) for part in value["streams"]] == [
        (["b"], ["a"]),
        (["a", "b", "c"], []),
    ]
    assert (value["workers"], value["not_covered"]["workers"]) == (["b"], ["a"])


def test_the_kept_workers_need_not_be_those_of_the_first_stream(two: Two) -> None:
    plan = two.plan("paid_by_payer", workers=("c",))
    assert [item.everyone for item in plan.inputs] == [True, False]
    assert (plan.scope.workers, plan.layout.labels[2]) == ((2,), "c")
    assert [item.workers for item in plan.inputs.keepers] == [{2: "c"}]
    assert [item.workers for item in plan.inputs.others] == [{0: "a", 1: "b"}]
    draft = draft_certificate(plan, [stream.content(plan.reads) for stream in plan.inputs])
    assert (draft.workers, draft.not_covered.workers) == (["c"], ["a", "b"])
    streams = {"orders": "payments", "payments": "orders_eu"}
    lay_tape(two.lake, "extra", ["a", "b"], [], (8 * HOUR_US,))
    merged = {**streams, "orders": ["payments", "extra"]}
    with pytest.raises(InvalidRequestError, match="extra and payments have different workers"):
        two.plan("paid_by_seller", streams=merged, workers_of={"orders/payments": ("a", "c")})
    shared = {"orders/payments": ("a",), "orders/extra": ("a",)}
    assert two.plan("paid_by_seller", streams=merged, workers_of=shared).scope.workers == (0,)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"workers": ("a",), "workers_of": {"orders": ("a",)}}, "both by workers and by"),
        (
            {"workers_of": {"clicks": ("a",)}},
            "names clicks, and the streams are those for orders, ",
        ),
        ({"workers_of": {"orders": ()}}, "no workers of orders are chosen"),
        ({"workers_of": {"orders": ("a",)}}, "paid mixes workers"),
    ],
)
def test_workers_that_cannot_be_chosen_are_refused(
    two: Two, asked: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^CAP-WORKERS: .*{said}"):
        two.plan("paid", **asked)
    with pytest.raises(InvalidRequestError, match="^CAP-WORKERS: workers_of is for several"):
        Request("orders_eu", "t", workers_of={"orders": ("a",)})


def test_what_lacks_of_the_kept_workers_is_filled(two: Two) -> None:
    chosen = {"payments": ("a", "c")}
    by_payer = Replay(  # type: ignore[call-arg]
        name="joined", streams=STREAMS, target="t", pipeline="paid_by_payer", workers_of=chosen
    )
    declared = replace(two.declarations, replays={"joined": by_payer})
    plan = two.plan("paid_by_payer")
    name, code = plan.computation.name, plan.computation.code
    books = Books(two.lake, plan.request.stream, plan.target, name, code)
    books.published("r", (2,), Region(Box((None,), (3 * HOUR_US,))))
    actual = survey(two.lake, declared, "joined", every=timedelta(hours=1))
    first, second = plan_replays(actual, BackfillRequest("joined"))
    assert (first.workers, first.workers_of) == (("a",), {})
    assert (second.workers, second.workers_of) == (None, by_payer.workers_of)
    assert make_plan(two.lake, declared, first).scope.workers == (0,)
    assert make_plan(two.lake, declared, second).scope.workers == (0, 2)
    # An order stands for no worker of the payments.
    shown = preview(two.lake, declared, two.request("paid_by_payer", workers=("c",))).to_json()
    assert shown["standing"] == {"current": 6 + 2, "stale": 0, "missing": 6 + 3}
    assert shown["left_out"] == ["payments/a", "payments/b"]


def test_chosen_workers_are_stored_and_followed(two: Two) -> None:
    request = two.request("paid_by_seller", workers_of={"orders": ("b",)}, follow="nightly")
    again = Request.from_json(json.loads(json.dumps(request.to_json())))
    assert again == request
    assert "workers_of" not in two.request().to_json()
    placed = Placement("_worker", "_time", "orders")
    assert placed.to_json() == {"worker": "_worker", "time": "_time", "source": "orders"}
    assert Placement(**placed.to_json()) == placed  # type: ignore[arg-type]
    assert Placement("_worker", "_time").to_json() == {"worker": "_worker", "time": "_time"}


def test_the_command_line_chooses_workers_of_each(two: Two) -> None:
    assert workers_by_source(['orders=a,"b,c"', "payments = 1"]) == {
        "orders": ("a", "b,c"),
        "payments": ("1",),
    }
    assert workers_by_source(None) == {}
    for texts in (["a"], ["=a"], ["orders="], ["orders=a", "orders=b"]):
        with pytest.raises(InvalidRequestError, match="^CAP-LIST"):
            workers_by_source(texts)


def test_a_certificate_has_a_part_per_stream(two: Two) -> None:
    plan = two.plan(peers=2)
    draft = draft_certificate(plan, [stream.content(plan.reads) for stream in plan.inputs])
    value = json.loads(json.dumps(draft.to_json()))
    orders, payments = value["streams"]
    assert orders == {
        "source": "orders", "stream": "orders_eu", "cut": 0, "workers": ["a", "b"], "left_out": [],
        "records": 12, "times": 6, "fingerprint": f"{12:016x}{24:016x}",
        "frontier": ["1970-01-01T08:00:00.000000Z"], "late": {},
    }  # fmt: skip
    assert (payments["records"], payments["workers"]) == (15, ["a", "b", "c"])
    assert payments["frontier"] == value["frontier"] == ["1970-01-01T06:00:00.000000Z"]
    assert (value["format"], value["stream"], value["cut"]) == (3, "orders_eu+payments", 0)
    assert (value["records"], value["fingerprint"]) == (27, f"{27:016x}{54:016x}")
    assert [share["sequences"] for share in value["replay_workers"]] == [
        ["orders/a", "payments/a", "payments/c"],
        ["orders/b", "payments/b"],
    ]
    assert sum(share["records"] for share in value["replay_workers"]) == 27
    assert Certificate.from_json(value).to_json() == value
    facts = dict(certificate_facts(Certificate.from_json(value), str))
    assert facts["stream for payments"].startswith("payments, at commit 0: 15 records")  # type: ignore[attr-defined]
    assert facts["workers of payments"] == ["a", "b", "c"]


def test_an_intent_pins_all_cuts(two: Two) -> None:
    plan = two.plan()
    draft = draft_certificate(plan, [stream.content(plan.reads) for stream in plan.inputs])
    placed = Placement(None, "_time")
    reached, cuts = plan.reached, plan.inputs.cuts
    intent = Intent(plan.request, 0, plan.region, reached, "", placed, ("id",), (), -1, draft, cuts)
    again = Intent.from_json(json.loads(json.dumps(intent.to_json())))
    assert again == replace(intent, certificate=again.certificate)
    go_on(two.lake, "payments", [], (9 * HOUR_US,))
    go_on(two.lake, "orders_eu", [], (9 * HOUR_US,))
    restored = make_plan(two.lake, two.declarations, again.request, cuts=again.pinned)
    assert (restored.inputs.cuts, restored.frontier) == (plan.inputs.cuts, plan.frontier)
    assert two.plan().inputs.at_cuts(again.pinned).cuts == plan.inputs.cuts


def test_a_plan_shows_all_streams(two: Two) -> None:
    actual = preview(two.lake, two.declarations, two.request())
    value = actual.to_json()
    assert [part["source"] for part in value["streams"]] == ["orders", "payments"]  # type: ignore[index]
    assert (value["records"], value["messages"]) == (27, 27)
    assert value["standing"] == {"current": 0, "stale": 0, "missing": 27}
    late = preview(two.lake, two.declarations, two.request(until=hour(7), partial=True))
    assert set(late.gaps.behind) == {"payments/a", "payments/b", "payments/c"}
    facts = dict(plan_facts(value, str))
    assert facts["stream for orders"].startswith("orders_eu, at commit 0: 12 records")  # type: ignore[attr-defined]
    assert "stream" not in facts


def test_one_cursor_follows_all_streams(two: Two) -> None:
    first = two.plan(follow="nightly")
    request = two.request(follow="nightly")
    assert two.plan(follow="nightly", streams={**STREAMS, "orders": "payments"}).identity != (
        first.identity
    )
    go_on(two.lake, "orders_eu", [(8 * HOUR_US,)], (20 * HOUR_US,))
    second = make_plan(two.lake, two.declarations, request, cursor=Cursor(first.reached))
    # Payments have not moved, so nothing became complete.
    assert nothing_new(second)
    go_on(two.lake, "payments", [(8 * HOUR_US,)], (10 * HOUR_US,))
    third = make_plan(two.lake, two.declarations, request, cursor=Cursor(second.reached))
    assert (third.region.simplified().box.since, end_of(third)) == ((6 * HOUR_US,), 10)
    assert third.identity == first.identity


def test_records_that_one_stream_no_longer_has_are_missed(two: Two) -> None:
    tape = open_tape(two.lake, "payments")
    box = two.plan(until=hour(2)).box
    write_retired(two.lake, tape, box, newest_cut(tape), 9, RetirementState.DONE)
    with pytest.raises(InvalidRequestError, match="^CAP-RETIRED: .*stream payments before"):
        two.plan(until=hour(5)).require_records()
    # Three hours before the range are read.
    two.plan(since=hour(5)).require_records()


def test_no_stream_is_retired_while_a_run_reads_it(two: Two) -> None:
    plan = two.plan()
    run = RunId(plan.identity, 1, "t")
    claims.claim(two.lake, run, plan.request.stream, plan.scope)
    for name in STREAMS.values():
        with pytest.raises(RangeLockedError, match=f"replays stream {name}"):
            _require_idle(two.lake, open_tape(two.lake, name))
    lay_tape(two.lake, "clicks", ["a"], [], (0,))
    _require_idle(two.lake, open_tape(two.lake, "clicks"))


def test_intervals_of_several_streams_are_surveyed_and_filled(two: Two) -> None:
    declared = replace(two.declarations, replays={"joined": JOINED})
    actual = survey(two.lake, declared, "joined", every=timedelta(hours=1))
    states = {IntervalState.GAP: 6, IntervalState.INCOMPLETE: 4}
    assert actual.counts == {str(state): states.get(state, 0) for state in IntervalState}
    plan = two.plan()
    name, code = plan.computation.name, plan.computation.code
    books = Books(two.lake, plan.request.stream, plan.target, name, code)
    whole = Box((None,), (3 * HOUR_US,))
    books.published("r", None, Region(whole))
    go_on(two.lake, "payments", [], (7 * HOUR_US,))
    actual = survey(two.lake, declared, "joined", every=timedelta(hours=1))
    assert (actual.counts["covered"], actual.counts["gap"]) == (3, 4)
    [request] = plan_replays(actual, BackfillRequest("joined"))
    assert (request.since, request.until) == (
        "1970-01-01T03:00:00.000000Z",
        "1970-01-01T07:00:00.000000Z",
    )
    assert (request.cuts, request.as_of) == ({"orders": 0, "payments": 1}, None)
    pinned = survey(two.lake, declared, "joined", cuts={"payments": 0}, every=timedelta(hours=1))
    assert pinned.counts["gap"] == 3
    # Another stream's rows are not these.
    other = Replay(name="o", streams={**STREAMS, "orders": "payments"}, target="t", pipeline="paid")  # type: ignore[call-arg]
    elsewhere = survey(
        two.lake, replace(two.declarations, replays={"o": other}), "o", every=timedelta(hours=1)
    )
    assert elsewhere.counts["covered"] == 0


def test_a_time_with_records_of_one_stream_alone_is_to_be_filled(tmp_path: Path) -> None:
    lake, times = Lake.at(tmp_path), [(n * HOUR_US,) for n in range(6)]
    late = dict.fromkeys(["a", "b"], (4 * HOUR_US,))
    lay_tape(lake, "orders_eu", ["a", "b"], times, (6 * HOUR_US,), opened=late)
    lay_tape(lake, "payments", ["a"], times, (6 * HOUR_US,))
    declared = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {"joined": JOINED}, REFERENCES)
    actual = survey(lake, declared, "joined", every=timedelta(hours=1))
    assert actual.counts["gap"] == 6


def test_the_command_line_names_streams_by_source(
    two: Two, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(f"pipelines: {{paid: {REFERENCES['paid']!r}}}", encoding="utf-8")

    def plan(*words: str) -> dict[str, object]:
        capsys.readouterr()
        shell = ["--lake", two.lake.root, "--config", str(declared), "--json"]
        main([*shell, "plan", *words, "--into", "t", "--pipeline", "paid"])
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    go_on(two.lake, "payments", [], (9 * HOUR_US,))
    streams = "payments=payments, orders=orders_eu"
    value = plan(streams)
    assert [(p["stream"], p["cut"]) for p in value["streams"]] == [  # type: ignore[attr-defined]
        ("orders_eu", 0),
        ("payments", 1),
    ]
    assert [p["cut"] for p in plan(streams, "--as-of", "payments=0")["streams"]] == [0, 0]  # type: ignore[attr-defined]
    assert plan("orders=orders_eu,payments")["error"] == "CAP-STREAMS"
    assert plan("orders=orders_eu,orders=payments")["error"] == "CAP-STREAMS"
    assert plan(streams, "--as-of", "one")["error"] == "CAP-USAGE"
    assert plan("orders=../x,payments=payments")["error"] == "CAP-NAME"


@pytest.mark.parametrize(
    "text",
    [
        "payments=payments, orders=orders_eu",
        "orders=orders_eu+orders_us",
        " orders = orders_eu+orders_us , payments=payments ",
        "orders=orders_eu",
        "orders=orders_eu+",
        "orders_eu",
        "orders=orders_eu,payments",
        "orders=orders_eu,,payments=payments",
        "orders=Orders,payments=payments",
        "a/b=orders_eu,payments=payments",
        "orders=../x,payments=payments",
    ],
)
def test_a_form_accepts_the_streams_that_a_request_can_have(text: str) -> None:
    assert re.search(STREAMS_PATTERN, "")
    try:
        streams = streams_of({"streams": text})
    except InvalidRequestError:
        streams = {}
    assert bool(re.search(STREAMS_PATTERN, text)) is bool(streams)


def test_requests_of_jobs_name_streams_alone(two: Two) -> None:
    fields = {"streams": dict(STREAMS), "into": "t", "pipeline": "paid"}
    request = read_request(Request, with_stream(fields))
    assert request == two.request()
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    single = Request("orders_eu", "t").to_json()
    assert not {"streams", "cuts"} & set(single)


def test_runs_of_several_streams_are_those_of_each(two: Two) -> None:
    plan = two.plan()
    draft = draft_certificate(plan, [stream.content(plan.reads) for stream in plan.inputs])
    books = Books(two.lake, plan.request.stream, plan.target)
    books.published("both-00000000-1", None, plan.region)
    Books(two.lake, "orders_eu", plan.target).failed("one-00000000-1", None, plan.region)
    for name, actual in (("orders_eu", 2), ("payments", 1), ("eu", 0)):
        assert len(read_heads(two.lake).found(RunSearch(stream=name))) == actual
    [run] = read_heads(two.lake).found(RunSearch(stream="payments")).views(0, 2)
    assert run.streams == ("orders_eu", "payments")
    [table] = list_tables(two.lake, [run.run])
    assert table.streams == ("orders_eu", "payments")
    rows = listings.run_rows(two.lake, two.declarations, None, "payments")
    assert [row["run"] for row in rows] == [run.run]
    page = render(
        "run.html",
        view=replace(run, certificate=draft, request={}),
        lake=two.lake.root,
        base="/b",
        airflow="",
        here="/",
        may_roll_back=False,
    )
    assert '<a href="/b/streams/payments">' in page
    assert "payments, at commit 0: 15 records" in page
