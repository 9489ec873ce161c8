"""Plans, certificates and audits as people read them on the pages of tasks."""

from __future__ import annotations

from html import unescape
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from capstan.airflow.assets import certified, table_asset
from capstan.airflow.documents import (
    approval_document,
    audits_document,
    certificate_document,
    plan_document,
)
from capstan.airflow.tasks.job_operator import tell_replay
from capstan.cli.tables import plan_tables
from capstan.replay.result import ReplayResult
from capstan.reporting.html import render
from capstan.reporting.summaries import plan_facts, plan_sentence, plan_title
from capstan.storage.ledger.certificate import Certificate

CERTIFICATE: dict[str, object] = {
    "run": "march-1", "stream": "flights", "cut": 30, "workers": ["EWR", "a|b\nc"],
    "not_covered": {"workers": ["JFK"]}, "since": None, "until": "2013-04-01", "records": 5,
    "times": 2, "frontier": [], "complete": True, "late": {"late": 3}, "transform": None,
    "pipeline": {"name": "p", "sink": "s", "trimmed": 2,
                 "put_aside": [{"node": "n", "output": "late", "rows": 4}]},
    "target": "march", "target_version": 4, "published": True, "unchanged": True, "attempt": 2,
    "audit": {"kind": "copy", "passed": True, "cells": 9, "differing": 0, "findings": [1] * 20},
}  # fmt: skip


def test_a_certificate_is_a_table_with_a_row_for_each_fact() -> None:
    document = certificate_document(CERTIFICATE)
    lines = document.markdown.splitlines()
    assert lines[0] == "## Certificate of march-1"
    assert "| workers | EWR, a\\|b c |" in lines
    lines = str(document).splitlines()
    assert lines[:2] == ["Certificate of march-1", ""]
    # Names and values stand in two columns.
    assert {line[18:20].strip() for line in lines[2:]} == {""}
    assert all(line[20] != " " for line in lines[2:])
    rows = {line[:18].strip(): line[20:] for line in lines[2:]}
    assert rows["workers"] == "EWR, a|b c"
    assert rows["workers left out"] == "JFK"
    assert rows["times"] == "from the start to before 2013-04-01"
    assert rows["complete"] == "yes, frontier empty: closed"
    assert rows["late, not replayed"] == "3 late"
    assert rows["audit"] == "passed (copy, 9 cells)"
    assert rows["published"] == "yes; already before, nothing changed"
    assert "transform" not in rows
    left_out = "2 rows around the range left out"
    assert rows["pipeline"] == f"p, sink s; {left_out}; 4 late rows of n put aside"


def test_what_comes_out_of_data_is_text_and_nothing_else() -> None:
    image = "![x](http://example.invalid/a.png) <img src=x> `code` a\\|b"
    text = certificate_document({**CERTIFICATE, "workers": [image]}).markdown
    shown = r"!\[x\](http://example.invalid/a.png) \<img src=x> \`code\` a\\\|b"
    assert f"| workers | {shown} |" in text.splitlines()


def test_a_followed_pipeline_s_certificate_names_its_states() -> None:
    state = {"keys": {"a": 2, "b": 3}, "peers": 4}
    printed = {"name": "p", "sink": "s", "resumed": "march-1-1", "state": state}
    text = str(certificate_document({**CERTIFICATE, "pipeline": printed}))
    assert "  p, sink s; resumed from march-1-1; 5 keys kept on 4 replay workers\n" in text


def test_what_a_plan_does_not_know_is_left_out() -> None:
    plan = {"stream": "s", "target": "t", "covered": [{"run": "r"}], "cut": 3}
    text = str(plan_document(plan))
    assert "\ncovered already by  r" in text
    assert "\ncomplete            no: the range can still receive records\n" in text
    assert "published by run" not in text
    assert "None" not in text


PLAN = {
    "stream": "s", "target": "t", "cut": 1234, "workers": ["EWR", "JFK"], "left_out": ["LGA"],
    "since": "2013-03-01T00:00:00.000000Z", "until": None, "complete": False,
    "frontier": ["2013-03-02T00:00:00.000000Z"], "behind": {"JFK": ["2013-03-02"]},
    "silent": ["JFK"], "not_on_tape": ["HPN"], "records": 123456, "times": 1000, "files": 1,
    "files_all": 2, "bytes": 1234567, "late": {"late": 5}, "transform": "by_day",
    "pipeline": {"name": "p", "sink": "s"}, "mode": "append", "target_path": "/lake/tables/t",
    "unseen": "main.shop.t",
    "covered": [{
        "run": "r-1", "workers": ["EWR"], "since": None, "until": None, "transform": None,
        "stale": True, "records": 4,
    }],
    "changed": ["version 7 (DELETE, 2024-05-01 00:00:00)"],
    "standing": {"current": 1, "stale": 2, "missing": 3000}, "stands": None, "held_by": ["h-1"],
    "checks": ["fare >= 0"], "approve": True, "timeless": {"read": 0, "left_out": 7},
    "changes": {"keys": ["id"], "sequence_by": ["lsn"], "delete_when": "op = 'd'", "history": True},
}  # fmt: skip


def test_a_plan_is_told_in_the_same_words_everywhere() -> None:
    console = Console(width=200, file=StringIO())
    for part in plan_tables(PLAN):
        console.print(part)
    shell = console.file.getvalue()  # type: ignore[attr-defined]
    page = unescape(render(
        "fill.html", base="", airflow="", here="", lake="/lake", replay="r", problem={}, plan=PLAN,
        fields=[], dag="capstan_replay",
    ))  # fmt: skip
    document = plan_document(PLAN)
    markdown, log = document.markdown, str(document)
    for name, _ in plan_facts(PLAN, str):
        if name in ("published by run", "covered already by"):
            continue
        assert f"\n{name} " in shell
        assert f"| {name} | " in markdown
        assert f"\n{name} " in log
        assert f"<dt>{name.capitalize()}</dt>" in page
    for text in (
        "s, at commit 1,234", "123,456 at 1,000 times", "1 of 2 files, 1.2 MiB", "append",
        "3,000 not published", "a person decides before it is published", "h-1", "fare >= 0",
        "no: the range can still receive records", "5 late",
    ):  # fmt: skip
        assert text in shell, text
        assert text in markdown, text
        assert text in log, text
        assert text in page, text


def test_one_sentence_says_what_would_be_played() -> None:
    def sentence(**more: object) -> str:
        return plan_sentence({**PLAN, "since": 3, **more}, str)

    into = "into t, appended to what is there; a person has to approve it."
    read = "123456 records of s (EWR, JFK), from 3, "
    assert sentence() == f"Replays {read}through by_day, {into}"
    assert sentence(stands="r-1") == "Changes nothing: run r-1 has published the same."
    merged = sentence(workers=list("abcde"), mode="merge", approve=False, until=5)
    assert " of s (5 workers), from 3 to before 5, " in merged
    assert merged.endswith(", into t, merged on its keys.")
    copy = {"transform": None, "pipeline": None, "mode": "replace", "approve": False}
    assert sentence(**copy).startswith(f"Replays {read}into t, replacing what is there")


@pytest.mark.parametrize(
    ("more", "title"),
    [
        ({}, "replay s EWR+JFK 2013-03-01.. into t"),
        ({"left_out": [], "until": "2013-03-02T06:00:00.000000Z"},
         "replay s 2013-03-01..2013-03-02T06:00:00Z into t"),
        ({"workers": list("abcde"), "since": None, "target": "/data/t/"},
         "replay s 5-workers into t"),
    ],
)  # fmt: skip
def test_a_title_names_a_run_by_what_it_plays(more: dict[str, object], title: str) -> None:
    assert plan_title({**PLAN, **more}) == title


def test_a_person_is_shown_some_of_many_changed_rows() -> None:
    rows = [{"kind": "added", "worker": n, "time": "t", "before": None, "after": {"n": n}}
            for n in range(7)]  # fmt: skip
    certificate = Certificate.from_json({**CERTIFICATE, "diff": {"sample": rows}})
    body = approval_document(certificate, "ann").markdown
    assert body.count("| added |") == 5
    assert "The page of the run shows 2 more of these rows." in body
    assert body.endswith("Somebody other than ann has to approve.")


def test_audits_say_what_differs_and_what_could_not_be_audited() -> None:
    actual = {"audits": [
        {"run": "a", "target": "t", "version": None, "kind": "copy", "passed": False,
         "cells": 7, "differing": 2},
        {"run": "b", "target": "t", "version": 3, "error": "CAP-CODE", "message": "changed"},
    ]}  # fmt: skip
    assert str(audits_document(actual)).splitlines()[2:] == [
        "run  target  version  audit  result",
        "---  ------  -------  -----  ------",
        "a    t       newest   copy   failed (copy): 2 of 7 cells differ",
        "b    t       3               not audited: changed",
    ]
    assert len(str(audits_document({})).splitlines()) == 4
    one = {"stream": "s", "target": "t", "version": None, "kind": "shared-columns",
           "passed": True, "cells": 7, "differing": 0}  # fmt: skip
    last = str(audits_document(one)).splitlines()[-1]
    assert last.split(maxsplit=3)[2:] == ["shared-columns", "passed (shared-columns, 7 cells)"]


def test_events_carry_no_samples_of_rows() -> None:
    reported = certified(Certificate.from_json(CERTIFICATE), unchanged=True)
    assert reported["audit"] == {"kind": "copy", "passed": True, "cells": 9, "differing": 0}
    assert reported["unchanged"] is True
    assert reported["not_covered"]["workers"] == ["JFK"]
    assert reported["late"] == {"late": 3}


def test_a_replay_with_nothing_to_do_changes_no_asset() -> None:
    task: Any = SimpleNamespace(outlets=["alias"], run_name=None, settings=None)
    nothing = ReplayResult(None, unchanged=True).to_json()
    tell_replay(task, {}, nothing)
    assert (task.outlets, task.run_name) == ([], "")
    assert "nothing new" in str(certificate_document(nothing))


def test_targets_have_names_of_their_own() -> None:
    targets = ("march", "/march", "s3a://march", "/path/march", "s3a://path/march")
    assets = [table_asset(target) for target in targets]
    assert assets[0].uri == "capstan://tables/march"
    assert len({asset.uri for asset in assets}) == len({a.name for a in assets}) == len(targets)
