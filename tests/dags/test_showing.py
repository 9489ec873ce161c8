"""Plans, certificates and audits as people read them on the pages of tasks."""

from __future__ import annotations

from capstan.airflow.assets import certified, table_asset
from capstan.airflow.showing import audits_markdown, certificate_markdown, plan_markdown

CERTIFICATE: dict[str, object] = {
    "run": "march-1", "stream": "flights", "cut": 30, "workers": ["EWR", "a|b\nc"],
    "not_covered": {"workers": ["JFK"]}, "since": None, "until": "2013-04-01", "records": 5,
    "times": 2, "frontier": [], "complete": True, "late": {"late": 3}, "transform": None,
    "pipeline": {"name": "p", "sink": "s", "trimmed": 2,
                 "put_aside": [{"node": "n", "output": "late", "rows": 4}]},
    "target": "march", "target_version": 4, "published": True, "stood": True, "attempt": 2,
    "audit": {"kind": "copy", "passed": True, "cells": 9, "differing": 0, "findings": [1] * 20},
}  # fmt: skip


def test_a_certificate_is_a_table_with_a_row_for_each_fact() -> None:
    lines = certificate_markdown(CERTIFICATE).splitlines()
    assert lines[0] == "## Certificate of march-1"
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines[4:])
    assert rows["workers"] == "EWR, a\\|b c"
    assert rows["workers left out"] == "JFK"
    assert rows["times"] == "from the start to before 2013-04-01"
    assert rows["complete"] == "yes, frontier empty: closed"
    assert rows["late, not played"] == "3 late"
    assert rows["audit"] == "passed (copy, 9 cells)"
    assert rows["published"] == "yes; nothing was changed, it stood already"
    assert "transform" not in rows
    left_out = "2 rows around the range left out"
    assert rows["pipeline"] == f"p, sink s; {left_out}; 4 late rows of n put aside"


def test_a_certificate_says_what_a_followed_pipeline_went_on_from_and_keeps() -> None:
    state = {"keys": {"a": 2, "b": 3}, "peers": 4}
    said = {"name": "p", "sink": "s", "resumed": "march-1-1", "state": state}
    text = certificate_markdown({**CERTIFICATE, "pipeline": said})
    assert "| p, sink s; went on from march-1-1; 5 keys kept on 4 replay workers |" in text


def test_what_a_plan_does_not_know_is_left_out() -> None:
    text = plan_markdown({"stream": "s", "target": "t", "covered": [{"run": "r"}], "cut": 3})
    assert "| covered already by | r |" in text
    assert "| complete | no: times can still receive records |" in text
    assert "stands already" not in text


def test_audits_say_what_differs_and_what_could_not_be_audited() -> None:
    found = {"audits": [
        {"run": "a", "target": "t", "version": None, "kind": "copy", "passed": False,
         "cells": 7, "differing": 2},
        {"run": "b", "target": "t", "version": 3, "error": "CAP-CODE", "message": "changed"},
    ]}  # fmt: skip
    lines = audits_markdown(found).splitlines()
    assert lines[-2] == "| a | t | newest | copy | failed (copy): 2 of 7 cells differ |"
    assert lines[-1] == "| b | t | 3 |  | not audited: changed |"
    assert len(audits_markdown({}).splitlines()) == 4
    one = {"stream": "s", "target": "t", "version": None, "kind": "shared-columns",
           "passed": True, "cells": 7, "differing": 0}  # fmt: skip
    last = audits_markdown(one).splitlines()[-1]
    assert last == "|  | t | newest | shared-columns | passed (shared-columns, 7 cells) |"


def test_events_carry_no_samples_of_rows() -> None:
    told = certified(CERTIFICATE)
    assert told["audit"] == {"kind": "copy", "passed": True, "cells": 9, "differing": 0}
    assert told["stood"] is True
    assert told["not_covered"] == {"workers": ["JFK"]}
    assert told["late"] == {"late": 3}


def test_targets_have_names_of_their_own() -> None:
    targets = ("march", "/march", "s3a://march", "/path/march", "s3a://path/march")
    assets = [table_asset(target) for target in targets]
    assert assets[0].uri == "capstan://tables/march"
    assert len({asset.uri for asset in assets}) == len({a.name for a in assets}) == len(targets)
