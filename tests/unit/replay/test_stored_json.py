"""Certificates, intents and previews keep their JSON: golden values from before they were typed.

`tests/formats/runs.json` holds the rows of the runs ledger, and the printed results, of copies,
transforms, pipelines, followed, held, approved, rolled-back and many-worker runs. The previews and
drafts of `tests/formats/plans.json` are of the lake that `planned` makes.
"""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import Mode
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.planning.intent import Intent
from capstan.replay.preview import preview
from capstan.replay.result import ReplayResult
from capstan.reporting.summaries import certificate_facts, plan_facts
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.tables import as_text
from tests.unit.replay.planning.test_computation import Place, hour

FORMATS = Path(__file__).parents[2] / "formats"
RUNS = json.loads((FORMATS / "runs.json").read_text(encoding="utf-8"))
PLANS = json.loads((FORMATS / "plans.json").read_text(encoding="utf-8"))
ASKED: dict[str, dict[str, object]] = {
    "copy": {"pipeline": None, "sink": None},
    "workers": {"pipeline": None, "sink": None, "workers": ("a", "c"), "peers": 2},
    "partial": {"pipeline": None, "sink": None, "until": hour(9), "partial": True},
    "transform": {"pipeline": None, "sink": None, "transform": "sum_by_day"},
    "pipeline": {"pipeline": "places", "sink": "hours", "since": hour(3), "until": hour(6)},
    "followed": {"pipeline": "places", "sink": "pairs", "follow": "nightly", "peers": 2},
}


def shown(place: Place, asked: dict[str, object]) -> dict[str, object]:
    request = place.request(**asked)  # type: ignore[arg-type]
    actual = preview(place.lake, place.declarations, request)
    plan = actual.plan
    played = [stream.content(plan.reads) for stream in plan.inputs]
    draft = draft_certificate(plan, played).to_json()
    if draft["pipeline"] is not None:
        draft["code"] = "hash"  # It follows the text of the module that declares the pipeline.
    text = json.dumps({"preview": actual.to_json(), "draft": draft})
    return json.loads(text.replace(place.lake.root, "/ROOT"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("planned"))
    moment = pa.struct([("event", pa.timestamp("us", "UTC"))])
    fields = [
        ("reason", pa.string()), ("worker", pa.int32()), ("batch", pa.int64()), ("time", moment),
    ]  # fmt: skip
    paths = place.lake.stream("little")
    for path in (paths.late, paths.records):
        deltalake.DeltaTable.create(path, pa.schema(fields))
    return place


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_shown_as_before(place: Place, name: str) -> None:
    actual = shown(place, ASKED[name])
    assert json.dumps(actual) == json.dumps(PLANS[name])  # The order of keys, too.


def test_the_rule_of_a_merge_by_sequence_is_shown(place: Place) -> None:
    merged = {
        "pipeline": None, "sink": None, "mode": Mode.MERGE, "keys": ("id",),
        "sequence_by": ("at", "n"), "delete_when": "op  =  'd'",
    }  # fmt: skip
    actual = shown(place, merged)
    rule = {"sequence_by": ["at", "n"], "delete_when": "op = 'd'", "history": False}
    assert actual["preview"]["changes"] == actual["draft"]["changes"] == rule  # type: ignore[index]
    draft = actual["draft"]
    assert Certificate.from_json(draft).to_json() == draft  # type: ignore[arg-type]
    text = "per key, the greatest at, n wins; deleted when op = 'd'"
    assert dict(plan_facts(actual["preview"], str))["changes"] == text  # type: ignore[arg-type]
    typed = Certificate.from_json(draft)  # type: ignore[arg-type]
    assert dict(certificate_facts(typed, str))["changes"] == text
    kept = shown(place, {**merged, "delete_when": None, "history": True})["draft"]
    versions = dict(certificate_facts(Certificate.from_json(kept), str))  # type: ignore[arg-type]
    assert versions["changes"] == "per key, a version for each at, n"
    other = shown(place, {**merged, "sequence_by": (), "delete_when": None})
    assert "changes" not in other["preview"]  # type: ignore[operator]
    assert dict(plan_facts(other["preview"], str))["changes"] == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("run", RUNS["ledger"])
def test_rows_of_the_ledger_are_written_as_they_were(run: str) -> None:
    for row in RUNS["ledger"][run]:
        if row["step"] == "intent":
            again = Intent.from_json(json.loads(row["detail"])).to_json()
        elif row["step"] == "done":
            again = Certificate.from_json(json.loads(row["detail"])).to_json()
        else:
            continue
        # The former option `direct` has no effect any more, and is not written again.
        assert as_text(again) == row["detail"].replace('"direct": true', '"direct": false')


@pytest.mark.parametrize("name", RUNS["printed"])
def test_results_are_printed_as_they_were(name: str) -> None:
    printed = RUNS["printed"][name]
    result = ReplayResult.from_json(printed)
    assert (result.certificate is None) == (printed["stream"] is None)
    again = result.to_json()
    # A key has another name since; what was printed before is read as well.
    assert again.pop("unchanged") == printed["stood"]
    assert {**again, "stood": printed["stood"]} == printed
