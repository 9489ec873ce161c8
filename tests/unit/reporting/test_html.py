"""Pages and reports as HTML: what is in them, and that nothing of data is ever markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup, escape

from capstan.cli import main
from capstan.core.config import ProjectConfig, Replay
from capstan.core.times import Box, Coordinate, Kind, TimeType
from capstan.core.times.region import Region
from capstan.reporting import formatting
from capstan.reporting.activity import TaskProgress, refresh_after
from capstan.reporting.attention.items import AttentionItem, AttentionList
from capstan.reporting.commit_history import CommitTimes, read_commit_times
from capstan.reporting.coverage_view import Cell, Coverage
from capstan.reporting.html import (
    STATIC,
    bounds_markup,
    environment,
    prose_markup,
    render,
    report_policy,
    run_report,
    static,
    time_markup,
)
from capstan.reporting.listings import report_facts, run_rows
from capstan.reporting.lists.paging import ListPage, part_of
from capstan.reporting.lists.run_search import RunSearch
from capstan.reporting.plots import (
    KINDS,
    Line,
    StepPlot,
    coordinate_axis,
    frontier_plot,
    furthest_behind,
    lag_plot,
    number_axis,
)
from capstan.reporting.run_view import list_runs, view_run
from capstan.reporting.stream_view import (
    StreamHistory,
    clock_lag,
    least_held,
    view_payload,
    view_stream,
    view_streams,
)
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import as_text
from tests.support.jvmless_lake import Books
from tests.support.recorded_tapes import Recorded, write
from tests.support.strategies import coordinate_values

HOSTILE = "\"'></text><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*1000007 }}"
NOTHING = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})
RUN = "t-0a0a0a0a-1"
WAITS = "t-0c0c0c0c-1"
DIFFERENCE = {
    "added": 1203,
    "removed": 0,
    "changed": 1,
    "cells": 7,
    "differing": 2,
    "new_columns": [HOSTILE],
    "sample": [
        {
            "kind": "changed",
            "worker": 0,
            "time": "2024-05-01T00:00:00.000000Z",
            "before": {"note": "OLD"},
            "after": {"note": HOSTILE},
        }
    ],
}
VOID = {"meta", "link", "input", "br", "img"}
CERTIFICATE = {
    "stream": "s", "cut": 0, "workers": [HOSTILE], "peers": 1, "records": 5, "times": 2,
    "fingerprint": "f" * 32, "since": "2024-05-01T00:00:00.000000Z",
    "until": "2024-05-02T06:30:00.000000Z", "frontier": ["2024-05-03T00:00:00.000000Z"],
    "complete": False, "late": {"late": 2, HOSTILE: 3}, "transform": HOSTILE, "code": "c",
    "not_covered": {
        "workers": ["LEFT-OUT"], "incomplete_from": ["2024-05-03T00:00:00.000000Z"],
        "asked_until": "2024-06-01T00:00:00.000000Z",
    },
    "replay_workers": [{"replay_worker": 0, "sequences": [HOSTILE], "records": 5}],
    "mode": "replace", "follow": None, "target": "t", "target_version": 3, "attempt": 1,
    "seconds": 1.5, "published": True,
    "audit": {
        "kind": "copy", "passed": False, "cells": 2, "differing": 1,
        "totals": {"missing": 1, "extra": 0, "changed": 0},
        "findings": [
            {"kind": "missing", "worker": 0, "time": "2024-05-01T00:00:00.000000Z",
             "expected": {"note": HOSTILE}, "actual": None},
        ],
    },
}  # fmt: skip


class Page(HTMLParser):
    """Elements, attributes and texts of a page; fails where its tags do not nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.places, self.open, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.places += [(name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.places += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def require_harmless(self, *, scripts=0):
        """Nothing of data is markup, nothing is loaded from elsewhere, and no style is inline."""
        assert self.tags.count("script") == scripts
        assert "img" not in self.tags
        names = {name for name, _ in self.places}
        assert not {name for name in names if name.startswith("on")} | (names & {"style"})
        for name, value in self.places:
            if name in ("href", "src", "action"):
                assert value.startswith(("/", "?", "#")), (name, value)
                assert not value.startswith("//")


@pytest.fixture
def lake(tmp_path):
    lake = Lake.at(tmp_path / "lake")
    labels = [HOSTILE, *(f"w{n}" for n in range(9))]
    Recorded("s", labels, slower={3: 4, 5: 5}, late={HOSTILE: 2, "late": 1}).lay(lake)
    kept = Books(lake, "s", lake.table("t"))
    request = {"request": {"into": "t", "note": HOSTILE}, "certificate": CERTIFICATE}
    kept.stepped(RUN, "intent", request)
    kept.stepped(RUN, "done", CERTIFICATE)
    kept.stepped("u-0b0b0b0b-1", "failed", {"error": HOSTILE, "message": HOSTILE})
    made = {"dag": HOSTILE, "dag_run": HOSTILE, "task": HOSTILE, "user": HOSTILE}
    kept.stepped(WAITS, "intent", {**request, "made_by": {**made, "try_number": 1}})
    kept.stepped(WAITS, "audited", {"audit": CERTIFICATE["audit"], "diff": DIFFERENCE})
    return lake


def pages(lake):
    """Every page that shows data, over a lake full of hostile names."""
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root + HOSTILE}
    view = view_stream(lake, NOTHING, "s")
    runs = list_runs(lake)
    item = AttentionItem(
        kind="failed", subject="run", name=HOSTILE, stream=HOSTILE, text=HOSTILE, first=HOSTILE,
        command=HOSTILE, form=HOSTILE,
    )  # fmt: skip
    yield render(
        "overview.html", attention=AttentionList((item,), {("failed", HOSTILE): 9}), may_fill=True,
        problems=[{"error": HOSTILE, "message": HOSTILE, "hint": HOSTILE}],
        streams=view_streams(lake, NOTHING, ["s"]), replays=[], places={}, runs=runs, more=0,
        **common,
    )  # fmt: skip
    yield render(
        "stream.html",
        view=view,
        payload=view_payload(lake, "s"),
        course=read_commit_times(lake, view),
        runs=part_of(runs, 1, 2),
        times=HOSTILE,
        dag="d",
        **common,
    )
    yield run_list(lake, RunSearch(HOSTILE, HOSTILE, HOSTILE, HOSTILE, sort=HOSTILE), 2)
    for run in runs:
        yield render("run.html", view=run, **common)


def run_list(lake, search, number=1):
    """The list of runs, with a run on each page."""
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root}
    runs = list_runs(lake)
    return render(
        "runs.html",
        known=len(runs),
        search=search,
        choices=[("stream", "Stream", ["s", HOSTILE])],
        runs=ListPage(runs[number - 1 : number], number, 1, len(runs), search.fields),
        **common,
    )


def test_nothing_of_data_is_ever_markup(lake):
    for text in pages(lake):
        page = Page(text)
        page.require_harmless(scripts=2)
        assert "{{ 7*1000007 }}" in text
        assert "7000049" not in text


def test_a_run_s_page_says_who_made_it_and_leads_to_airflow(lake):
    kept = Books(lake, "s", lake.table("v"), _now=datetime(2024, 1, 2, tzinfo=UTC))
    run, by = "v-0d0d0d0d-1", {"dag": "capstan_replay", "dag_run": "manual__1+0", "user": "ada"}
    task = {**by, "task": "g.replay", "try_number": 1}
    kept.stepped(run, "failed", {"error": "CAP-FULL", "made_by": task})
    again = {**task, "try_number": 2, "map_index": 4}
    kept.stepped(run, "intent", {"made_by": again}, attempt=2)
    kept.stepped(run, "failed", {"error": "CAP-FULL", "made_by": again}, attempt=2)
    kept.stepped(run, "intent", {"made_by": by}, attempt=3)
    kept.stepped(run, "audited", {"audit": {}}, attempt=3)
    common = {"base": "/x/capstan", "airflow": "/x", "here": "/", "lake": lake.root}
    page = render("run.html", view=view_run(lake, run), **common)
    at = "/x/dags/capstan_replay/runs/manual__1%2B0"
    links = [value for name, value in Page(page).places if name == "href" and "/dags/" in value]
    assert links == [
        f"{at}/required_actions",
        at, f"{at}/tasks/g.replay?try_number=1",
        at, f"{at}/tasks/g.replay/mapped/4?try_number=2",
        at,
    ]  # fmt: skip
    for step in ("approved", "rejected"):
        kept.stepped(run, step, {"by": "eve", "at": "2024-05-01", "reason": "late"}, attempt=3)
    kept.stepped(run, "rolled-back", {"made_by": {**by, "user": ""}})
    for text in said(lake, run):
        assert text.count("started ada 2024") == 3
        for what in ("approved", "rejected"):
            assert f"{what} eve: late 2024-01-02" in text
        assert "rolled back nobody: a schedule, an event or a program 2024" in text
        assert "by eve at 2024-05-01: late" in text
    assert "It is not recorded" in said(lake, RUN)[0]


@pytest.mark.parametrize(
    ("claimed", "intent", "task", "badge", "told"),
    [
        (True, False, None, "running", ["has not written its intent yet", "It holds its range"]),
        (True, True, None, "running", ["stages and audits 5 records", "It holds its range"]),
        (True, True, "queued", "queued", ["waits for a slot, or to be tried again"]),
        (True, True, "over", "dead", ["the task that made it has ended", "capstan unlock v-0d"]),
        (False, True, None, "dead", ["its claim has ended, and was not renewed"]),
        (False, True, "running", "running", ["has not claimed the range again"]),
    ],
)  # fmt: skip
def test_a_run_s_page_says_what_goes_on(lake, claimed, intent, task, badge, told):
    run = "v-0d0d0d0d-1"
    kept = Books(lake, "s", lake.table("v"), _now=datetime.now(UTC) - timedelta(minutes=5))
    if claimed:
        kept.claimed(run, [0], Region(Box((None,), (None,))))
    if intent:
        kept.stepped(run, "intent", {"request": {}, "certificate": CERTIFICATE})
    view = replace(view_run(lake, run), task=task and TaskProgress(task))
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root}
    page = render("run.html", view=view, refresh=refresh_after([view.activity]), **common)
    said = " ".join(" ".join(Page(page).texts).split())
    assert f"Run {run} {formatting.STATES[badge][0]} {badge}" in said
    assert [text for text in told if text not in said] == []
    assert ("capstan unlock" in said) == (badge == "dead" and claimed)
    assert ("At work for 4 min 5" in said) == (badge == "running")
    assert ('data-refresh="5"' in page) == (badge != "dead")
    runs = part_of([view], 1, 50)
    listed = render("runs.html", runs=runs, known=1, search=RunSearch(), choices=[], **common)
    assert f'<span class="badge {badge}">' in listed
    assert "data-refresh" not in listed


def test_a_run_that_has_ended_says_how_long_each_step_took(lake):
    kept = Books(lake, "s", lake.table("v"), _now=datetime(2024, 1, 2, tzinfo=UTC))
    run = "v-0d0d0d0d-1"
    kept.stepped(run, "intent", {"request": {}, "certificate": CERTIFICATE})
    kept._now += timedelta(minutes=3)
    kept.stepped(run, "done", CERTIFICATE)
    for text in said(lake, run):
        assert "1 done 2024-01-02 00:03:02 UTC 3 min 1 s" in text
        assert "At work" not in text


STACK = "An error occurred while calling o12.save.\n: org.apache.spark.SparkException: {}\n" + (
    "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)\n" * 100
)


@pytest.mark.parametrize(
    ("detail", "code", "said"),
    [
        (
            {"error": STACK.format("[FAILED_READ_FILE.NO_HINT] reading file file:/l/a.parquet. ")},
            "CAP-DAMAGED",
            "a file cannot be read: /l/a.parquet",
        ),
        ({"error": STACK.format("what nobody foresaw")}, "CAP-BROKEN", "what nobody foresaw"),
        ({"error": "CAP-AUDIT", "message": "rows are missing " * 1000}, "CAP-AUDIT", "are missing"),
    ],
)
def test_what_a_run_failed_with_is_a_code_and_a_line(tmp_path, detail, code, said):
    lake = Lake.at(tmp_path)
    Books(lake, "s", lake.table("t")).stepped("t-0c0c0c0c-1", "failed", detail)
    runs = list_runs(lake)
    assert runs[0].error["error"] == code
    assert [row["error"] for row in run_rows(lake, NOTHING, None, None)] == [code]
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root}
    for text in (run_list(lake, RunSearch()), render("run.html", view=runs[0], **common)):
        assert code in text
        assert "DAGScheduler" not in text
        assert len(text) < 8_000
    assert said in text


def test_a_run_that_waits_shows_what_it_would_change(lake):
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root}
    words = " ".join(Page(render("run.html", view=view_run(lake, WAITS), **common)).texts)
    printed = " ".join(words.split())
    assert "What publishing would change Rows added 1,203 Rows removed 0 Rows changed 1" in printed
    assert "Cells 2 of 7 change" in printed
    assert "changed 0 2024-05-01 UTC note=OLD note=" in printed
    assert "What publishing" not in render("run.html", view=view_run(lake, RUN), **common)
    report = Page(run_report(lake, NOTHING, WAITS))
    report.require_harmless()
    assert "What publishing would change" in report.texts


def test_a_report_is_one_file_that_loads_nothing(lake):
    text = run_report(lake, NOTHING, RUN)
    page = Page(text)
    page.require_harmless()
    assert "link" not in page.tags
    assert "a" not in page.tags
    assert not re.search(r"https?://|url\(|@import", text)
    policy = dict(page.places)["content"]
    assert any(v == report_policy() for n, v in page.places if n == "content"), policy


def test_the_policy_of_a_report_names_the_hash_of_its_style(lake):
    import base64
    import hashlib

    style = re.search(r"<style>(.*?)</style>", run_report(lake, NOTHING, RUN), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in report_policy()


def test_a_report_says_what_was_played_and_what_was_not(lake):
    text = " ".join(" ".join(Page(run_report(lake, NOTHING, RUN)).texts).split())
    for printed in (
        f"Report of run {RUN}", "f" * 32, "LEFT-OUT", "2024-05-03", "requested until 2024-06-01",
        "from 2024-05-01 UTC to before 2024-05-02 06:30 UTC", "only in part", "1 of 2 cells differ",
        "1 missing", "2 late", "version 3", "late rows", "commit",
    ):  # fmt: skip
        assert printed in text, printed


def test_a_report_for_programs_has_what_the_ledgers_have(lake):
    report = json.loads(json.dumps(report_facts(view_run(lake, RUN))))
    names = ("stream", "fingerprint", "late", "audit", "target")
    assert report["certificate"].items() >= {name: CERTIFICATE[name] for name in names}.items()
    assert (report["state"], report["at"]) == ("published", "2024-01-01T00:00:02Z")
    assert report["request"] == {"into": "t", "note": HOSTILE}
    assert [step["step"] for step in report["steps"]] == ["intent", "done"]
    assert (report["difference"], report["error"], report["findings"]) == (None, None, [])
    waits = json.loads(json.dumps(report_facts(view_run(lake, WAITS))))
    assert (waits["difference"], waits["published"]) == (DIFFERENCE, False)
    failed = json.loads(json.dumps(report_facts(view_run(lake, "u-0b0b0b0b-1"))))
    assert (failed["certificate"], failed["state"]) == (None, "failed")
    # As the pages have it: a foreign error is told by its code.
    assert failed["error"]["error"] == failed["steps"][-1]["detail"]["error"] == "CAP-BROKEN"


def test_a_report_of_a_run_that_has_failed_at_once(lake):
    text = " ".join(Page(run_report(lake, NOTHING, "u-0b0b0b0b-1")).texts)
    assert "The run ended before they were counted." in text
    assert "are late" not in text
    assert "The run ended before it was planned." in text


CHECKS = [
    {"name": "paid", "rule": "fare >= 0", "failing": 0},
    {"name": "known", "rule": "id is not null", "failing": 1203},
]


def said(lake, run):
    """What the page and the report of a run say, without markup."""
    common = {"base": "/capstan", "airflow": "", "here": "/", "lake": lake.root}
    texts = render("run.html", view=view_run(lake, run), **common), run_report(lake, NOTHING, run)
    return [" ".join(" ".join(Page(text).texts).split()) for text in texts]


def test_checks_are_shown_by_name_whether_they_were_met_or_not(lake):
    kept = Books(lake, "s", lake.table("v"), _now=datetime(2024, 1, 2, tzinfo=UTC))
    passed = {"kind": "copy", "passed": True, "cells": 2, "differing": 0, "checks": CHECKS[:1]}
    certificate = {**CERTIFICATE, "audit": passed}
    kept.stepped("v-0d0d0d0d-1", "intent", {"request": {}, "certificate": certificate})
    kept.stepped("v-0d0d0d0d-1", "done", certificate)
    for text in said(lake, "v-0d0d0d0d-1"):
        assert "Audit passed (copy, 2 cells) Checks paid (fare >= 0): met by all rows" in text
        assert "paid fare >= 0 ✓ met by all rows" in text


@pytest.mark.parametrize(
    ("error", "audit"),
    [
        ({"error": "CAP-CHECK", "checks": CHECKS}, "check known not met by 1,203 rows"),
        ({"error": "CAP-AUDIT", "cells": 9, "differing": 2}, "2 of 9 cells differ"),
        ({"error": "CAP-FULL"}, "none: the run ended before"),
    ],
)  # fmt: skip
def test_of_a_run_that_has_failed_nothing_is_said_that_is_not_so(lake, error, audit):
    kept = Books(lake, "s", lake.table("v"), _now=datetime(2024, 1, 2, tzinfo=UTC))
    draft = {**CERTIFICATE, "complete": True, "late": {}, "not_covered": {}, "audit": None}
    kept.stepped("v-0d0d0d0d-1", "intent", {"request": {}, "certificate": draft})
    kept.stepped("v-0d0d0d0d-1", "failed", error)
    for text in said(lake, "v-0d0d0d0d-1"):
        assert audit in text
        assert "There was none yet" not in text
        assert "0 of" not in text
        assert "Nothing: all workers" not in text
        assert "Everything: the run failed, and published nothing." in text
        assert ("known id is not null ✕ not met by 1,203 rows" in text) == ("checks" in error)


def test_uncounted_late_rows_are_not_shown_as_zero(lake):
    assert "The run ended before they were counted." in said(lake, "u-0b0b0b0b-1")[1]
    assert "No row of its workers" not in said(lake, "u-0b0b0b0b-1")[1]
    kept = Books(lake, "s", lake.table("v"), _now=datetime(2024, 1, 2, tzinfo=UTC))
    kept.stepped("v-0d0d0d0d-1", "done", {**CERTIFICATE, "late": {}})
    assert "No rows of these workers and times are late." in said(lake, "v-0d0d0d0d-1")[1]


def test_a_report_outlives_its_tape(lake):
    (Path(lake.root) / "streams").rename(Path(lake.root) / "gone")
    text = " ".join(Page(run_report(lake, NOTHING, RUN)).texts)
    assert "f" * 32 in text


def test_findings_of_the_ledger_are_in_the_report(lake):
    row = {
        "run": RUN, "attempt": 1, "at": datetime(2024, 6, 1, tzinfo=UTC), "stream": "s", "cut": 0,
        "target": lake.table("t"), "target_version": 3, "audit": "copy", "kind": "changed",
        "code": "CAP-CHANGED", "check_name": None, "total": 17, "worker": 0, "time": "2024-05-01",
        "expected": as_text({"n": 1}), "actual": as_text({"n": HOSTILE}), "sample": None,
    }  # fmt: skip
    schema = pa.schema([(name, _arrow(name)) for name in row])
    write(lake.ledger("findings"), pa.Table.from_pylist([row], schema=schema))
    assert view_run(lake, RUN).found[0].rows[0]["actual"] == {"n": HOSTILE}
    page = Page(run_report(lake, NOTHING, RUN))
    page.require_harmless()
    text = " ".join(page.texts)
    assert "CAP-CHANGED" in text
    assert "17" in text
    [found] = json.loads(json.dumps(report_facts(view_run(lake, RUN))))["findings"]
    assert (found["at"], found["audit"], found["version"]) == ("2024-06-01T00:00:00Z", "copy", 3)
    assert (found["rows"][0]["code"], found["rows"][0]["expected"]) == ("CAP-CHANGED", {"n": 1})
    assert "n=1" in text


def found_broken(lake, tape, total, at, worker=0):
    """Have somebody find, or find gone, that a recording of `s` breaks a rule."""
    reported = {"tape": tape, "seq": 7, "rule": "message", "about": f"event 7: {HOSTILE}"}
    row = {
        "run": "", "attempt": 0, "at": at, "stream": "s", "cut": 2, "target": "",
        "target_version": None, "audit": "verification", "kind": "violation",
        "code": "CAP-VIOLATION", "check_name": None, "total": total, "worker": worker,
        "time": None, "expected": None if total else as_text(reported),
        "actual": as_text(reported) if total else None, "sample": None,
    }  # fmt: skip
    schema = pa.schema([(name, _arrow(name)) for name in row])
    write(lake.ledger("findings"), pa.Table.from_pylist([row], schema=schema))


def test_a_violation_is_shown_on_the_stream_until_it_is_gone(lake):
    own = str(deltalake.DeltaTable(lake.stream("s").events).metadata().id)
    day = datetime(2024, 6, 1, tzinfo=UTC)
    found_broken(lake, own, 1, day)
    found_broken(lake, own, 1, day, worker=3)
    found_broken(lake, "another tape of that name", 1, day, worker=4)
    texts = list(pages(lake))
    for page in map(Page, texts):
        page.require_harmless(scripts=2)
    overview, stream = (" ".join(" ".join(Page(text).texts).split()) for text in texts[:2])
    assert re.search(r"✕ violation .*, w2\b", overview)
    assert stream.count("CAP-VIOLATION") == 2
    assert "Worker w2 breaks message: event 7:" in stream
    assert "Found at commit 2, 2024-06-01 00:00:00 UTC" in stream
    found_broken(lake, own, 0, day + timedelta(days=1), worker=3)
    found_broken(lake, own, 0, day + timedelta(days=1))
    assert all("CAP-VIOLATION" not in text for text in list(pages(lake))[1:2])


def _arrow(name):
    numbers = {"attempt": pa.int32(), "worker": pa.int32()}
    longs = dict.fromkeys(("cut", "target_version", "total"), pa.int64())
    return {**numbers, **longs, "at": pa.timestamp("us", "UTC")}.get(name, pa.string())


def test_report_of_the_command_line(lake, tmp_path, capsys):
    out = tmp_path / "report.html"
    words = ["report", RUN, "-o", str(out), "--lake", lake.root, "--json"]
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"run": RUN, "report": str(out), "bytes": out.stat().st_size}
    Page(out.read_text(encoding="utf-8")).require_harmless()
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "report.html"}


@pytest.mark.parametrize(
    ("run", "place", "code"),
    [
        ("t-00000000-1", "report.html", "CAP-RUN"),
        ("../../etc", "report.html", "CAP-RUN"),
        (RUN, "no/such/folder/report.html", "CAP-OUTPUT"),
    ],
)
def test_a_report_that_cannot_be_made_leaves_no_file(lake, tmp_path, capsys, run, place, code):
    out = tmp_path / place
    assert main(["report", run, "-o", str(out), "--lake", lake.root, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == code
    assert not out.exists()


# Plots


PLOTS = environment().get_template("plots.html").module
steps, bars, spark, coverage = PLOTS.steps, PLOTS.bars, PLOTS.spark, PLOTS.coverage


def test_of_many_workers_those_furthest_behind_are_drawn(lake):
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    drawn = [line.worker for line in furthest_behind(view)]
    assert len(drawn) == KINDS
    assert {3, 5} <= set(drawn)
    text = steps(frontier_plot(view, read_commit_times(lake, view)))
    assert text.count('<path class="line') == KINDS
    Page(text).require_harmless()


def test_frontiers_and_lags_are_drawn_over_commit_times(lake):
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    known = CommitTimes(
        (begin, begin + timedelta(hours=1), None, begin + timedelta(hours=9)), (9, 9, 9, 9)
    )
    text = steps(frontier_plot(view, known))
    # The ticks have no day where all are of one, which the name of the axis has.
    assert ">written (UTC, 2024-05-01)<" in text
    assert ">03:00<" in text
    assert "commit 1, 2024-05-01 01:00:00 UTC" in text
    assert "commit 2" not in text
    # After an hour of nine the line goes up, not after a third of the way.
    places = [float(x) for x in re.findall(r'class="band" x="([0-9.]+)"', text)]
    assert places == pytest.approx([84, 84 + 540 / 9, 84 + 540])
    unknown = CommitTimes((None,) * 4, (None,) * 4)
    assert "commit 2" in steps(frontier_plot(view, unknown))
    assert lag_plot(view, unknown) is None
    assert steps(None) == ""


@pytest.mark.parametrize(
    ("hours", "axis"),
    [
        # Three commits of four came at once: over the clock, they would be a vertical line.
        ((0, 0.01, 0.02, 9), "commit (half of them within 1 min 12 s)"),
        ((0, 3, 6, 9), "written (UTC, 2024-05-01)"),
        ((0, 30, 60, 90), "written (UTC, 2024)"),
        ((0, 30 * 24, 60 * 24, 400 * 24), "written (UTC)"),
    ],
)
def test_bursts_are_drawn_by_commit(lake, hours, axis):
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    known = CommitTimes(tuple(begin + timedelta(hours=hour) for hour in hours), (9, 9, 9, 9))
    plot = frontier_plot(view, known)
    assert plot is not None
    assert plot.across.name == axis
    # Either way, each place says when it was.
    last = begin + timedelta(hours=hours[-1])
    assert plot.marks[-1] == f"commit 3, {formatting.moment(last)} UTC"


@pytest.mark.parametrize(
    ("low", "high", "left_out"),
    [
        ("2013-03-01T06:00", "2013-03-01T18:00", ", 2013-03-01"),
        ("2013-03-01T23:59:50", "2013-03-02T00:00:09", ", 2013-03-01 to 2013-03-02"),
        ("2013-03-01", "2013-03-04", ", 2013"),
        ("2013-12-30", "2014-01-09", ", 2013 to 2014"),
        ("2013-01-01", "2013-12-31", ""),
    ],
)
def test_an_axis_says_what_its_marks_leave_out(low, high, left_out):
    event = Coordinate.of("event", Kind.TIMESTAMP)
    moments = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (low, high))
    ends = [int(at.timestamp()) * 1_000_000 for at in moments]
    assert coordinate_axis(event, *ends).name == f"event (UTC{left_out})"


def test_lags_are_those_of_the_table_of_workers(lake):
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    course = read_commit_times(lake, view)
    text = steps(lag_plot(view, course))
    Page(text).require_harmless()
    last = re.findall(r"<title>commit 3, [^<]*", text)[0]
    slow = view.workers[5]
    lag = formatting.length_text(view.coordinate, view.lag(least_held(slow)))
    assert f"{slow.label}: {lag}" in unescape(last)
    assert lag == "19 h"


NAMES = st.text(max_size=12)
VALUES = st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=70)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=10), NAMES)
def test_plots_of_anything_are_well_formed_and_inside(lines, title):
    length = len(lines[0][1]) if lines else 0
    drawn = [Line(name, values, ["t"] * length) for name, values in lines if len(values) == length]
    axes = number_axis(title, 0, 70), number_axis("y", 0, 100)
    text = steps(StepPlot(title, *axes, range(length), [title] * 70, drawn))
    Page(text).require_harmless()
    for x, y in re.findall(r"[ML]([0-9.-]+) ([0-9.-]+)", text):
        assert 0 <= float(x) <= 720
        assert 0 <= float(y) <= 280
    Page(bars(title, title, [(name, len(values)) for name, values in lines])).require_harmless()
    Page(spark(title, lines[0][1] if lines else [])).require_harmless()


@given(st.sampled_from(Kind), st.data())
def test_the_marks_of_an_axis_are_few_rising_and_on_it(kind, data):
    coordinate = Coordinate.of("t", kind)
    low, high = sorted(data.draw(coordinate_values(kind)) for _ in range(2))
    axis = coordinate_axis(coordinate, low, high)
    values = [value for value, _ in axis.ticks]
    assert len(values) <= 16
    assert values == sorted(set(values))
    assert all(axis.low <= value <= axis.high for value in values)
    assert axis.place(axis.low, 10, 20) == 10
    assert axis.place(axis.high, 10, 20) == 20


def test_a_tape_of_one_commit_is_a_dot():
    assert " h0" in spark("one", [None, 5.0])
    assert " h0" not in spark("two", [5.0, 6.0])


def test_a_year_has_a_cell_for_each_of_its_days():
    days = [date.fromordinal(date(2024, 1, 1).toordinal() + n) for n in range(366)]
    cells = [
        Cell(f"{d}", f"{d}", "gap" if d.day == 3 else "covered", (), 1, name=f"{d}", day=d)
        for d in days
    ]
    view = Coverage(
        Replay(name="r", stream="s", target="t", transform=HOSTILE), {"covered": 354, "gap": 12},
        tuple(cells), (2024,), 2024, (), 0, False, True, TimeType.of(event=Kind.TIMESTAMP),
    )  # fmt: skip
    text = coverage(view, "/fill")
    page = Page(text)
    page.require_harmless()
    assert page.tags.count("rect") == 366
    assert page.tags.count("a") == 12
    right = max(int(x) for x in re.findall(r'<rect[^>]* x="(\d+)"', text))
    assert right + 12 <= int(re.search(r'viewBox="0 0 (\d+)', text)[1])
    # The sign says the state as well as the colour does.
    assert text.count(">○<") == 12


# Colours


def themes():
    """The variables of both themes; what the dark one does not set is as in the light one."""
    blocks = re.findall(r":root[^{]*\{([^{}]*)\}", static("style.css"))
    light, *dark = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", b)) for b in blocks]
    assert len(dark) == 2
    assert dark[0] == dark[1]
    return {"light": light, "dark": {**light, **dark[0]}}


def contrast(one, other):
    """The contrast of two colours as WCAG 2 defines it, from 1 to 21."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_everything_can_be_told_from_what_it_lies_on(name):
    colours = themes()[name]
    texts = [(item, "back") for item in ("text", "muted", "link", "bad")]
    texts += [("text", "panel"), ("muted", "panel"), ("back", "link")]
    texts += [(item, f"{item}-back") for item in ("good", "old", "bad", "open", "none")]
    for one, other in texts:
        assert contrast(colours[one], colours[other]) >= 4.5, (one, other)
    for one in [f"s{n}" for n in range(KINDS)] + ["none-edge"]:
        assert contrast(colours[one], colours["back"]) >= 3, one


# Texts


@pytest.mark.parametrize(
    ("value", "markup"),
    [
        (
            "2013-03-01T06:30:00.000000Z",
            '<time datetime="2013-03-01T06:30:00Z">2013-03-01 06:30 UTC</time>',
        ),
        (
            "2013-03-01T06:30:05.250000Z",
            '<time datetime="2013-03-01T06:30:05.250000Z">2013-03-01 06:30:05.250000 UTC</time>',
        ),
        ("2013-03-01T00:00:00Z", '<time datetime="2013-03-01T00:00:00Z">2013-03-01 UTC</time>'),
        # Days and numbers are in no zone.
        ("2013-03-01", "2013-03-01"),
        (17, "17"),
        ([3, "2013-03-01"], "(3, 2013-03-01)"),
        ("<b>2013-03-01T00:00:00Z", "&lt;b&gt;2013-03-01T00:00:00Z"),
        (["<b>"], "(&lt;b&gt;)"),
        (None, ""),
    ],
)
def test_times_on_pages_have_their_zone(value, markup):
    assert escape(time_markup(value)) == markup


def test_bounds_on_pages_are_those_of_texts():
    since = "2013-03-01T06:30:00.000000Z"
    expected = Markup("from {} to before {}").format(time_markup(since), "<b>")
    assert bounds_markup(since, "<b>") == expected
    assert (
        bounds_markup(None, 17) == formatting.bounds_text(None, 17) == "from the start to before 17"
    )


@pytest.mark.parametrize(
    ("kind", "frontier", "lag"),
    [
        (Kind.TIMESTAMP, datetime(2024, 5, 30, 9, tzinfo=UTC), "2 d 3 h"),
        (Kind.TIMESTAMP, datetime(2024, 6, 9, tzinfo=UTC), "0 s"),
        (Kind.DATE, datetime(2024, 5, 30, tzinfo=UTC), "2 d"),
        (Kind.TIMESTAMP, None, ""),
        (Kind.BIGINT, 17, ""),
    ],
)
def test_a_frontier_is_behind_the_clock(kind, frontier, lag):
    """Unless it is closed, or counts something else than time."""
    coordinate = Coordinate.of("t", kind)
    if isinstance(frontier, datetime):
        frontier = int(frontier.timestamp()) * 1_000_000
        frontier = frontier // 86_400_000_000 if kind is Kind.DATE else frontier
    now = datetime(2024, 6, 1, 12, tzinfo=UTC)
    view = SimpleNamespace(coordinate=coordinate, frontier=frontier)
    assert formatting.length_text(coordinate, clock_lag(view, now)) == lag
    view.frontier = coordinate.minimum
    assert clock_lag(view, now) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2013-03-01T00:00:00.000000Z", "2013-03-01"),
        ("2013-03-01T06:30:00.000000Z", "2013-03-01 06:30"),
        ("2013-03-01T06:30:05.000000Z", "2013-03-01 06:30:05"),
        ("2013-03-01T06:30:05.250000Z", "2013-03-01 06:30:05.250000"),
        ("2013-03-01", "2013-03-01"),
        (17, "17"),
        ([3, "2013-03-01T00:00:00.000000Z"], "(3, 2013-03-01)"),
        ("a:00Z", "a:00Z"),
        (None, ""),
    ],
)
def test_times_are_written_short(value, text):
    assert formatting.time_text(value) == text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.TIMESTAMP, 3 * 3_600_000_000, "3 h"),
        (Kind.TIMESTAMP, 90_061_000_000, "1 d 1 h"),
        (Kind.TIMESTAMP, 0, "0 s"),
        (Kind.TIMESTAMP, 5, "under 1 s"),
        (Kind.DATE, 2, "2 d"),
        (Kind.BIGINT, 12_000, "12,000"),
        (Kind.BIGINT, None, ""),
    ],
)
def test_lengths_are_written_short(kind, value, text):
    assert formatting.length_text(Coordinate.of("t", kind), value) == text


def test_what_is_served_beside_pages_is_there():
    assert {name for name in STATIC if static(name)} == set(STATIC)
    with pytest.raises(KeyError):
        static("../rendering.py")


@pytest.mark.parametrize(
    ("icon", "backgrounds"),
    # Of Airflow's navigation, with and without the page chosen.
    [("icon.svg", ("#ffffff", "#3c5b89")), ("icon-dark.svg", ("#171d2c", "#3c5b89"))],
)
def test_an_icon_is_seen_where_airflow_shows_it(icon, backgrounds):
    strokes = re.findall('stroke="(#[0-9a-f]+)"', static(icon))
    colours = [f"#{c[1] * 2}{c[2] * 2}{c[3] * 2}" if len(c) == 4 else c for c in strokes]
    for background in backgrounds:
        assert max(contrast(colour, background) for colour in colours) >= 3, background


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "as *Peers* says, or `capstan runs`",
            "as <em>Peers</em> says, or <code>capstan runs</code>",
        ),
        ("*Declared replay*.", "<em>Declared replay</em>."),
        ("count(*) of sum(*) and 2 * 3 * 4", "count(*) of sum(*) and 2 * 3 * 4"),
        ("/data/*/a*b*c", "/data/*/a*b*c"),
        ("2*b* c", "2*b* c"),
        ("<b>`<i>`*x*", "&lt;b&gt;<code>&lt;i&gt;</code><em>x</em>"),
        ("one ` alone", "one ` alone"),
        (None, ""),
    ],
)
def test_emphasis_and_code_in_a_text_are_shown_as_such(text, shown):
    assert str(prose_markup(text)) == shown
