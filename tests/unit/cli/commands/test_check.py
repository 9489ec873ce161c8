"""`capstan check`: transcripts of timely, their mutants, and what is no transcript at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.cli import main

TIMELY = Path(__file__).parents[3] / "conformance" / "timely"
CASES = sorted(
    path.parent for path in TIMELY.glob("*/expected.json") if path.parent.name != "mutants"
)
MUTANTS = json.loads((TIMELY / "mutants" / "expected.json").read_text(encoding="utf-8"))["mutants"]
KEYS = ("valid", "events", "records", "holdings", "frontier", "closed")
SOUND = b'{"worker":4,"seq":0,"event":"progress","updates":[[0,-1],[7,1]]}\n'


@pytest.fixture
def check(capsys):
    """Run `check --json`; the exit code and the object."""

    def run(*words):
        code = main(["check", "--json", *map(str, words)])
        out, err = capsys.readouterr()
        assert err == ""
        assert out.count("\n") == 1
        return code, json.loads(out)

    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_timely_transcripts_use_the_minimum_in_case_json(case, check):
    code, actual = check(case)
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))["streams"]
    assert (code, actual["valid"]) == (0, True)
    assert [Path(item["file"]).name for item in actual["streams"]] == [
        f"worker-{stream['worker']}.jsonl" for stream in expected
    ]
    for item, stream in zip(actual["streams"], expected, strict=True):
        assert item["worker"] == stream["worker"]
        assert (item["events"], item["records"]) == (stream["events"], stream["records"])
        assert item["holdings"] == stream["final_holdings"]
        assert item["frontier"] == stream["final_frontier"]
        assert item["closed"] == stream["closed"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["file"])
def test_mutants_have_the_expected_verdict(mutant, check):
    path = TIMELY / "mutants" / mutant["file"]
    code, actual = check(path, "--minimum", json.dumps(mutant["minimum"]))
    (item,) = actual["streams"]
    expected = mutant["expected"]
    assert code == (0 if expected["valid"] else 1)
    assert {key: item[key] for key in KEYS} == {key: expected[key] for key in KEYS}
    violation = item["violation"]
    if expected["valid"]:
        assert violation is None
    else:
        assert violation["seq"] == expected["first_violation_seq"]
        assert violation["rule"] == expected["rule"]


def test_one_broken_transcript_among_good_ones_ends_with_1(tmp_path, check, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_bytes(SOUND)
    bad.write_bytes(SOUND + b'{"worker":4,"seq":1,"event":"messages","time":6,"data":[1]}\n')
    assert check(good)[0] == 0
    code, actual = check(good, bad)
    assert (code, actual["valid"]) == (1, False)
    assert [item["valid"] for item in actual["streams"]] == [True, False]
    assert [item["worker"] for item in actual["streams"]] == [4, 4]
    assert actual["streams"][1]["violation"]["rule"] == "message"
    assert main(["check", str(good), str(bad)]) == 1
    assert "messages at 6, and nothing held is less or equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        SOUND + SOUND[: len(SOUND) // 2],
        b"\x00\xff\xfe rubbish",
        b"[" * 100_000,
        b"{}",
        b'{"worker": true, "seq": 0}',
        b"\n",
    ],
    ids=["truncated", "bytes", "nested", "empty object", "no worker", "empty line"],
)
def test_rubbish_is_a_violation_of_shape(text, tmp_path, check):
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    code, actual = check(path)
    assert code == 1
    assert actual["streams"][0]["violation"]["rule"] == "shape"


def test_an_empty_transcript_is_a_worker_before_its_first_event(tmp_path, check):
    path = tmp_path / "x.jsonl"
    path.touch()
    code, actual = check(path, "--minimum", "[0, 5]")
    assert code == 0
    (item,) = actual["streams"]
    assert (item["events"], item["worker"], item["closed"]) == (0, None, False)
    assert (item["holdings"], item["frontier"]) == ([[[0, 5], 1]], [[0, 5]])


@pytest.mark.parametrize("types", [(), ("--time-type", "u64", "--record-type", "u64")])
def test_a_transcript_named_after_a_worker_must_match_it(types, tmp_path, check):
    (tmp_path / "worker-4.jsonl").write_bytes(SOUND)
    (tmp_path / "worker-3.jsonl").write_bytes(SOUND)
    (tmp_path / "other.jsonl").write_bytes(SOUND)
    code, actual = check(tmp_path, *types)
    assert code == 1
    assert [(item["worker"], item["valid"], item["events"]) for item in actual["streams"]] == [
        (3, False, 0), (4, True, 1), (4, True, 1)
    ]  # fmt: skip
    violation = actual["streams"][0]["violation"]
    assert (violation["seq"], violation["rule"]) == (0, "shape")
    assert "worker 4 in the recording of worker 3" in violation["about"]


def test_times_have_the_form_of_the_minimum(tmp_path, check):
    path = tmp_path / "x.jsonl"
    line = (
        b'{"worker":0,"seq":0,"event":"progress","updates":[[[0],-1],[[18446744073709551615],1]]}\n'
    )
    path.write_bytes(line + b'{"worker":0,"seq":1,"event":"messages","time":[3],"data":[]}\n')
    code, actual = check(path, "--minimum", "[0]")
    (item,) = actual["streams"]
    assert code == 1
    assert item["holdings"] == [[[18446744073709551615], 1]]
    assert item["frontier"] == [[18446744073709551615]]
    assert item["violation"]["time"] == [3]
    assert item["violation"]["held"] == item["holdings"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["{}/nothing.jsonl"], "CAP-FILE"),
        (["{}/empty"], "CAP-FILE"),
        (["{}/x.bin"], "CAP-FILE"),
        (["{}/x.jsonl", "--minimum", "{"], "CAP-TIME"),
        (["{}/x.jsonl", "--minimum", '"a"'], "CAP-TIME"),
        (["{}/x.jsonl", "--minimum", "[]"], "CAP-TIME"),
        (["{}/x.jsonl", "--minimum", "18446744073709551616"], "CAP-TIME"),
        (["{}/x.jsonl", "--minimum", "1.5"], "CAP-TIME"),
        (["{}/x.jsonl", "--minimum", "null"], "CAP-TIME"),
    ],
)
def test_unreadable_recordings_are_refused(words, code, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_bytes(b"")
    (tmp_path / "x.jsonl").write_bytes(SOUND)
    placed = [word.replace("{}", str(tmp_path)) for word in words]
    assert main(["check", *placed, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == code


def test_checks_warn_of_plain_secrets(check, tmp_path):
    file = tmp_path / "streams.yaml"
    file.write_text(
        "streams:\n"
        "  orders:\n"
        "    source: {format: kafka, options: {kafka.ssl.key.password: hunter2}}\n"
        "    workers: {by: partition}\n"
        "    time: {domain: epoch}\n",
        encoding="utf-8",
    )
    code, actual = check(file)
    assert (code, actual["valid"], actual["mistakes"]) == (0, True, [])
    (warning,) = actual["warnings"]
    assert "streams.orders.source.options.kafka.ssl.key.password seems to be a secret" in warning
    assert "hunter2" not in warning
    text = file.read_text(encoding="utf-8").replace("hunter2", '"{env:KEY_PASSWORD}"')
    file.write_text(text + "  other: {}\n", encoding="utf-8")
    code, actual = check(file)
    assert (code, actual["valid"], actual["warnings"]) == (1, False, [])
    assert "streams.other" in actual["mistakes"][0]
    code, actual = check(file, TIMELY)
    assert (code, actual["error"]) == (2, "CAP-USAGE")
