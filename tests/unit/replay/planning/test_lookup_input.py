"""Versions of lookup tables as they are pinned, kept and checked, without a JVM."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from capstan.airflow.lake_queries import interrupted_request
from capstan.cli.commands.explain import described
from capstan.cli.options import lookup_versions
from capstan.core.config import ProjectConfig
from capstan.core.config.loading.validation import read_request
from capstan.errors import InvalidRequestError
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.planning.cursor import Cursor
from capstan.replay.planning.intent import Intent, Placement
from capstan.replay.planning.lookup_input import Pin
from capstan.replay.planning.plan import Plan, request_at_cuts
from capstan.replay.planning.planner import at_versions, make_plan
from capstan.replay.planning.request import Request
from capstan.reporting.formatting import pipeline_text
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, moved_tables, runs
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from tests.support.jvmless_lake import lay_tape, starts_spark
from tests.support.lookup_pipelines import REFERENCES

HOUR_US = 3_600_000_000
DECLARED = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {}, REFERENCES)


class Shop:
    """A complete stream of orders, and a table of customers with three versions."""

    def __init__(self, root: Path) -> None:
        self.pipeline = "named_orders"
        self.lake = Lake.at(root)
        lay_tape(self.lake, "orders", ["a", "b"], [(n * HOUR_US,) for n in range(3)], None)
        paths = self.lake.stream("orders")
        late = pa.schema([("reason", pa.string()), ("worker", pa.int32()), ("batch", pa.int64())])
        time = pa.field("time", pa.struct([("event", pa.timestamp("us", "UTC"))]))
        deltalake.DeltaTable.create(paths.late, late.append(time))
        self.customers = self.lake.table("customers")
        for name in ("Ada", "Bo", "Cy"):
            self.change(name)

    def change(self, name: str) -> None:
        rows = pa.table({"id": ["x"], "name": [name], "region": pa.array([1], pa.int32())})
        deltalake.write_deltalake(self.customers, rows, mode="overwrite")

    def request(self, **asked: Any) -> Request:
        return Request("orders", "t", **{"pipeline": self.pipeline, **asked})

    def plan(self, pins: dict[str, Pin] | None = None, **asked: Any) -> Plan:
        return make_plan(self.lake, DECLARED, self.request(**asked), pins=pins)

    def version(self, **asked: Any) -> int:
        return self.plan(**asked).computation.lookup_pins["customers"].version

    def intent(self, plan: Plan) -> Intent:
        draft = draft_certificate(plan, [item.content(plan.reads) for item in plan.inputs])
        placed = Placement(None, "_time")
        code, cut = plan.computation.code, plan.inputs.cut.commit
        return Intent(
            plan.request, cut, plan.region, plan.reached, code, placed, (), (), -1,
            draft, lookups=plan.computation.lookup_pins,
        )  # fmt: skip

    def stopped(self, plan: Plan, *steps: Step) -> None:
        """A run that was killed after its intent, or after these steps."""
        run = RunId(plan.identity, 1, "t")
        for step in (Step.INTENT, *steps):
            detail = self.intent(plan).to_json() if step is Step.INTENT else {}
            stream, target = plan.request.stream, plan.target
            runs.write_step(self.lake, run, 1, step, stream=stream, target=target, detail=detail)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "lake")


def test_the_newest_version_is_pinned_and_part_of_the_identity(shop: Shop) -> None:
    before = shop.plan()
    assert before.computation.lookup_pins["customers"].version == 2
    shop.change("Di")
    after = shop.plan()
    assert after.computation.lookup_pins["customers"].version == 3
    assert before.identity != after.identity
    assert shop.plan(lookups={"customers": 2}).identity == before.identity
    assert shop.plan(dict(before.computation.lookup_pins)).identity == before.identity
    assert request_at_cuts(before).lookups == {"customers": 2}
    assert make_plan(shop.lake, DECLARED, request_at_cuts(before)).identity == before.identity


def test_two_lookups_are_pinned_in_their_order(shop: Shop) -> None:
    regions = pa.table({"code": pa.array([1], pa.int32()), "worker": pa.array([0], pa.int32())})
    deltalake.write_deltalake(shop.lake.table("regions"), regions)
    plan = shop.plan(pipeline="by_customer", lookups={"customers": 0})
    assert [(lookup.lookup.name, lookup.pin.version) for lookup in plan.computation.lookups] == [
        ("customers", 0),
        ("regions", 0),
    ]


def test_versions_are_stored_only_if_present(shop: Shop) -> None:
    assert "lookups" not in Request("orders", "t").to_json()
    requested = shop.request(lookups={"customers": 1})
    assert Request.from_json(json.loads(json.dumps(requested.to_json()))) == requested
    assert read_request(Request, {"stream": "s", "into": "t", "pipeline": "p", "lookups": {"c": 1}})
    plan = shop.plan()
    intent = shop.intent(plan)
    again = Intent.from_json(json.loads(json.dumps(intent.to_json())))
    assert again.lookups == plan.computation.lookup_pins
    assert "lookups" not in replace(intent, lookups={}).to_json()
    # What was pinned stays, whatever becomes of the table; an undo does not even need it.
    shop.change("Di")
    assert shop.plan(dict(again.lookups)).identity == plan.identity
    shutil.rmtree(shop.customers)
    assert shop.plan(dict(again.lookups)).computation.lookup_pins == plan.computation.lookup_pins
    assert not shop.plan({}).computation.lookups


def test_plan_and_certificate_show_the_version(shop: Shop) -> None:
    plan = shop.plan(lookups={"customers": 1})
    value = shop.intent(plan).certificate.to_json()
    assert value["format"] == 1
    assert value["pipeline"]["lookups"] == [  # type: ignore[index]
        {
            "name": "customers", "source": "orders", "table": "customers", "path": shop.customers,
            "id": plan.computation.lookup_pins["customers"].id, "version": 1,
        }
    ]  # fmt: skip
    assert "lookup customers in customers at version 1" in pipeline_text(value["pipeline"])
    pipeline = plan.computation.pipeline  # type: ignore[attr-defined]
    shown = described(pipeline, pipeline.plan())
    assert shown["lookups"][0]["table"] == "customers"  # type: ignore[index]


def require_readable(plan: Plan) -> None:
    for lookup in plan.computation.lookups:
        lookup.require_readable()


def refused(shop: Shop, said: str, **asked: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^CAP-LOOKUP: .*{said}"):
        shop.plan(**asked)


def test_versions_that_are_not_there_are_refused(shop: Shop) -> None:
    refused(shop, "has no version 9: the newest is 2", lookups={"customers": 9})
    refused(shop, "pipeline named_orders has no lookup 'clients'", lookups={"clients": 1})
    refused(shop, "are those of a pipeline's", lookups={"customers": 1}, pipeline=None)
    refused(shop, "lookup regions: there is no Delta table", pipeline="by_customer")


def test_a_version_whose_log_is_gone_is_refused(shop: Shop) -> None:
    table = deltalake.DeltaTable(shop.customers)
    table.create_checkpoint()
    for version in (0, 1):
        Path(shop.customers, "_delta_log", f"{version:020}.json").unlink()
    refused(shop, "the log of .* no longer has version 1", lookups={"customers": 1})
    assert shop.version() == 2


def test_vacuumed_lookup_versions_are_refused(shop: Shop) -> None:
    pinned = shop.plan()
    shop.change("Di")
    require_readable(pinned)
    table = deltalake.DeltaTable(shop.customers)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(InvalidRequestError, match=r"^CAP-LOOKUP: .*version 2 of .* lacks part-"):
        require_readable(pinned)
    refused(shop, "lacks", lookups={"customers": 2})
    require_readable(shop.plan())


def test_a_replaced_lookup_table_is_detected(shop: Shop) -> None:
    pinned = shop.plan()
    shutil.rmtree(shop.customers)
    with pytest.raises(InvalidRequestError, match="^CAP-LOOKUP: .*there is no Delta table"):
        require_readable(pinned)
    for name in ("Ada", "Bo", "Cy"):
        shop.change(name)
    with pytest.raises(InvalidRequestError, match="^CAP-LOOKUP: .*another than the one whose"):
        require_readable(pinned)
    assert shop.plan().identity != pinned.identity


class TestNamedInACatalog:
    """Lookup tables by their names in a catalog, as it tells their paths and ids."""

    @pytest.fixture
    def named(self, shop: Shop) -> Shop:
        shop.pipeline = "orders_by_name"
        return shop

    def found(self, shop: Shop, path: str, name: str = "shop.customers") -> str:
        table = str(deltalake.DeltaTable(path).metadata().id)
        moved_tables._record_found(shop.lake, name, path, table)
        return table

    def test_it_is_read_where_it_was_last_seen(self, named: Shop) -> None:
        with pytest.raises(InvalidRequestError, match="CAP-LOOKUP.*is not known in this lake yet"):
            named.plan()
        assert starts_spark(named.lake, DECLARED, "t", "orders_by_name")
        assert not starts_spark(named.lake, DECLARED, "t", "named_orders")
        table = self.found(named, named.customers)
        assert not starts_spark(named.lake, DECLARED, "t", "orders_by_name")
        [lookup] = named.plan().computation.lookups
        assert (lookup.path, lookup.pin) == (named.customers, Pin(table, 2))
        assert named.version(lookups={"customers": 1}) == 1
        assert lookup.to_json()["table"] == "Shop.Customers"

    def test_a_pinned_version_is_found_by_its_id(self, named: Shop, tmp_path: Path) -> None:
        self.found(named, named.customers)
        before = named.plan()
        pins = before.computation.lookup_pins
        # Moved; then another table gets the name, and this one another name.
        moved, other = str(tmp_path / "moved"), str(tmp_path / "other")
        shutil.move(named.customers, moved)
        self.found(named, moved)
        assert named.plan().identity == before.identity
        deltalake.write_deltalake(other, deltalake.DeltaTable(moved).to_pyarrow_table())
        self.found(named, other)
        assert named.plan().identity != before.identity
        self.found(named, moved, "shop.former")
        [again] = named.plan(pins).computation.lookups
        assert (again.path, again.unreadable) == (moved, None)
        [returned] = at_versions(named.plan(), pins).computation.lookups
        assert returned == again
        # What is gone is not taken for another table; a rollback does without.
        unknown = {"customers": Pin("gone", 2)}
        [gone] = named.plan(unknown).computation.lookups
        assert gone.unreadable is not None


def test_a_stopped_run_goes_on_at_its_version(shop: Shop) -> None:
    plan = shop.plan()
    shop.stopped(plan)
    shop.change("Di")
    assert shop.plan().identity == plan.identity
    # Another request is another run.
    assert shop.version(until="1970-01-01T01:00:00Z") == 3
    assert shop.version(lookups={"customers": 3}) == 3
    assert shop.version(follow="nightly") == 3
    # One whose version can no longer be read begins anew.
    table = deltalake.DeltaTable(shop.customers)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert shop.version() > 3


@pytest.mark.parametrize("step", [Step.FAILED, Step.DONE, Step.REJECTED])
def test_a_run_that_has_ended_is_not_continued(shop: Shop, step: Step) -> None:
    shop.stopped(shop.plan(), step)
    shop.change("Di")
    assert shop.version() == 3


def test_a_followed_replay_takes_the_newest_version_in_each_run(shop: Shop) -> None:
    first = shop.plan(follow="nightly")
    shop.change("Di")
    cursor = Cursor(first.reached)
    second = make_plan(shop.lake, DECLARED, shop.request(follow="nightly"), cursor=cursor)
    assert second.computation.lookup_pins["customers"].version == 3
    assert second.identity == first.identity
    assert (
        at_versions(second, first.computation.lookup_pins).computation.lookup_pins
        == first.computation.lookup_pins
    )


def test_the_command_line_names_versions() -> None:
    assert lookup_versions(None) == {}
    assert lookup_versions("customers=3, regions=0") == {"customers": 3, "regions": 0}
    for text in ("customers", "customers=x", "=3", "customers=-1", "a=1,a=2", ""):
        with pytest.raises(InvalidRequestError, match="^CAP-USAGE: --lookup takes"):
            lookup_versions(text)


def test_a_retry_in_airflow_recognises_its_request(shop: Shop) -> None:
    plan = shop.plan()
    saved = request_at_cuts(plan).to_json()
    claims.claim(shop.lake, RunId(plan.identity, 1, "t"), plan.request.stream, plan.scope)
    shop.change("Di")
    setting: Any = SimpleNamespace(lake=shop.lake.root, declarations=DECLARED)
    actual = interrupted_request(setting, shop.request(), saved)
    assert actual is not None
    assert actual.lookups == {"customers": 2}
    assert interrupted_request(setting, shop.request(mode="append"), saved) is None
