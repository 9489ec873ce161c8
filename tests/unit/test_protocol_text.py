"""`docs/protocol.md` against the code: versions, columns, types, keys, reasons, identities."""

from __future__ import annotations

import ast
import json
import re
import struct
from dataclasses import fields
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from capstan.capture.batch import classify
from capstan.capture.query.source_reconciliation import Reconciliation, SourceDifference
from capstan.core.protocol import Rule
from capstan.core.times import Kind, TimeType
from capstan.interop.kafka import export_topics
from capstan.interop.kafka.topic_layout import TopicHeader
from capstan.maintenance import run
from capstan.pipeline.spark import state_rows
from capstan.replay.execution.approval import Decision
from capstan.replay.output import certificate
from capstan.replay.publish import diff
from capstan.reporting.listings import LATE_REASONS
from capstan.storage.delta import delta
from capstan.storage.late.late_rows import LateSelection
from capstan.storage.ledger import findings, retirements, side_outputs, tables
from capstan.storage.ledger.certificate import Certificate, NotCovered
from capstan.storage.ledger.coverage import COMPARED, GONE, PUBLISHED, ROLLED_BACK
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.tape import schema
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.upgrade import STEPS
from tests.support.golden_hashes import GOLDEN

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "lib" / "capstan"
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")

# A time and a payload that the text calls TIME and DATA.
_TIMES = TimeType.of(c=Kind.BIGINT)
_PAYLOAD = StructType([StructField("p", IntegerType())])
COLUMNS = {
    "events": schema.events_schema(_TIMES, stamped=True),
    "records": schema.records_schema(_TIMES, _PAYLOAD, stamped=True),
    "workers": schema.WORKERS,
    "feed": schema.FEED,
    "late": schema.late_schema(_TIMES, _PAYLOAD),
    "settled": schema.settled_schema(_TIMES, _PAYLOAD),
    **tables.SCHEMAS,
    "aside": side_outputs.SIDE_OUTPUTS,
    "state": from_arrow_schema(pa.schema([("snapshot", pa.string()), *state_rows.COLUMNS])),
}


def section(title: str) -> str:
    """The text under a heading, up to the next heading."""
    parts = re.split(r"^#{2,3} ", TEXT, flags=re.MULTILINE)
    actual = [part for part in parts if part.splitlines()[0] == title]
    assert len(actual) == 1, f"{title}: {len(actual)} headings"
    return actual[0]


def flowing(title: str) -> str:
    """The text under a heading, whatever its lines."""
    return " ".join(section(title).split())


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first heading is `first`."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    starts = [i for i, line in enumerate(lines) if line.startswith(f"| {first} ")]
    assert len(starts) == 1, f"{len(starts)} tables of {first}"
    actual = []
    for line in lines[starts[0] + 2 :]:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not cells[0].startswith("`"):
            break
        actual.append(cells)
    return actual


def names(cells: list[list[str]]) -> list[str]:
    """All names in the first column."""
    return [name for row in cells for name in re.findall(r"`([^`]+)`", row[0])]


def keys_of(module: str, *functions: str) -> set[str]:
    """All text keys of dictionaries that are written down in some functions of a module."""
    tree = ast.parse((LIBRARY / module).read_text(encoding="utf-8"))
    chosen = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in functions]
    assert {node.name for node in chosen} == set(functions)
    return {
        key.value
        for function in chosen
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def words(text: str) -> set[str]:
    """All that stands in code quotes."""
    return set(re.findall(r"`([^`\n]+)`", text))


def anchor(heading: str) -> str:
    """The place that a link to a heading names."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_version_is_that_of_the_code() -> None:
    version = re.search(r"^Format version: \*\*(\d+)\*\*$", TEXT, flags=re.MULTILINE)
    assert version is not None
    assert int(version[1]) == schema.FORMAT
    listed = re.findall(r"^\| (\d+) \| [\d.]+ \|", section("14. Versions"), flags=re.MULTILINE)
    assert listed == [str(n + 1) for n in range(schema.SETTLED_FORMAT)]
    assert f"`capstan.format` `{tables.LEDGER_FORMAT}`" in flowing("9. The ledgers")
    assert f"`format`: {certificate.CERTIFICATE_FORMAT}." in section("Certificate")


def test_contents_match_the_numbered_headings() -> None:
    headings = re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    assert [heading.split(". ")[0] for heading in headings] == [
        str(number + 1) for number in range(len(headings))
    ]
    listed = re.findall(r"^(\d+\. )\[(.+)\]\(#(.+)\)$", TEXT, flags=re.MULTILINE)
    assert [number + title for number, title, _ in listed] == headings
    assert [place for *_, place in listed] == [anchor(heading) for heading in headings]


def test_a_section_that_is_named_is_the_one_that_is_linked() -> None:
    links = re.findall(r"\[section (\d+)\]\(#(\d+)-", TEXT)
    assert links
    assert [number for number, _ in links] == [number for _, number in links]


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_and_their_types_are_those_of_the_code(table: str) -> None:
    written = [
        (row[0].strip("`"), row[1].replace(" ", "").lower())
        for row in rows(section(f"`{table}`"), "column")
    ]
    named = {"struct<c:bigint>": "time", "struct<p:int>": "data"}
    coded = []
    for field in COLUMNS[table].fields:
        kind = field.dataType.simpleString()
        for long, short in named.items():
            kind = kind.replace(long, short)
        coded.append((field.name, kind))
    assert written == coded


def test_the_tape_s_properties_are_those_that_are_written() -> None:
    source = "".join(
        (LIBRARY / name).read_text(encoding="utf-8")
        for name in ("storage/tape/tape.py", "capture/batch/checkpoint_guard.py")
    )
    coded = set(re.findall(r'"(capstan\.[a-z]+)"', source))
    assert set(names(rows(section("`events`"), "property"))) == coded


def test_settings_are_named() -> None:
    coded = keys_of("capture/query/tape_settings.py", "settings_of")
    text = section("`events`")
    assert '`{"fixed": {...}, "free": {...}}`' in text
    assert coded - {"fixed", "free"} <= words(text)


def test_late_reasons_are_those_of_the_code() -> None:
    tree = ast.parse(Path(classify.__file__).read_text(encoding="utf-8"))
    judge = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "classify_rows"
    )
    coded = {
        call.args[1].value
        for call in ast.walk(judge)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "when"
        and isinstance(call.args[1], ast.Constant)
    }
    assert set(names(rows(section("`late`"), "reason"))) == coded == set(LATE_REASONS)
    assert len(coded) == 7


def test_origins_of_batches_are_those_of_the_code() -> None:
    cells = {row[0].strip("`"): row[2] for row in rows(section("`feed`"), "column")}
    assert words(cells["origin"]) == {origin.value for origin in Origin}
    details = {row[0].strip("`"): words(row[1]) for row in rows(section("`feed`"), "origin")}
    assert details == {
        "rescale": keys_of("capture/synthetic/rescale.py", "detail_of"),
        "idle": keys_of("capture/synthetic/synthetic_batch.py", "idle_detail"),
        "put-back": keys_of("capture/run.py", "put_back"),
        "drop": keys_of("capture/dead_letters.py", "drop", "_open_again", "_signed")
        | {field.name for field in fields(LateSelection)},
        "fix": keys_of("capture/dead_letters.py", "fix", "_signed")
        | {field.name for field in fields(LateSelection)},
    }


def test_every_older_format_has_a_step_to_the_next() -> None:
    assert sorted(STEPS) == list(range(1, schema.FORMAT))


def test_rules_are_those_of_the_code() -> None:
    listed = names(rows(section("3. The rules of a recording"), "rule"))
    assert listed == [rule.value for rule in Rule]


def test_kinds_of_coordinates_are_those_of_the_code() -> None:
    assert names(rows(section("2. Times"), "kind")) == [kind.value for kind in Kind]


def test_steps_of_runs_and_what_they_hold_are_those_of_the_code() -> None:
    cells = {row[0].strip("`"): row[2] for row in rows(section("`runs`"), "step")}
    assert list(cells) == [step.value for step in Step]
    assert words(cells["intent"]) == keys_of("replay/planning/intent.py", "to_json")
    undone = keys_of("replay/execution/rollback.py", "restore_previous_rows")
    assert words(cells["rolled-back"]) == undone


def test_states_of_coverage_are_those_of_the_code() -> None:
    cells = {row[0].strip("`"): row[2] for row in rows(section("`coverage`"), "column")}
    assert words(cells["state"]) == {PUBLISHED, COMPARED, ROLLED_BACK, GONE}


def test_state_keys_are_those_of_the_code() -> None:
    coded = keys_of("replay/snapshots.py", "to_json")
    assert set(names(rows(section("State"), "key"))) == coded


def test_certificate_keys_are_those_of_the_code() -> None:
    inside = keys_of("replay/output/certificate.py", "_replay_workers")
    inside |= keys_of("replay/planning/pipeline_computation.py", "to_json")
    inside |= {field.name for field in fields(NotCovered)}
    inside |= keys_of("replay/output/rows.py", "counted")
    coded = {field.name for field in fields(Certificate)} - {"staging", "diff"}
    text = section("Certificate")
    assert set(names(rows(text, "key"))) == coded
    assert inside <= words(text)


def test_audit_keys_are_those_of_the_code() -> None:
    listed = names(rows(section("Audit"), "key"))
    coded = keys_of("audit/result.py", "to_json")
    inside = {"worker", "time", "expected", "actual", "where", "check", "name", "rule", "failing"}
    assert coded - set(listed) == inside
    assert coded <= words(section("Audit"))


def test_difference_keys_are_those_of_the_code() -> None:
    coded = keys_of("replay/publish/diff.py", "to_json")
    assert coded <= words(section("Difference"))
    kinds = set(diff._KINDS.values())
    assert kinds <= words(section("Difference"))


def test_codes_of_findings_are_those_of_the_code() -> None:
    text = section("`findings`")
    assert names(rows(text, "code")) == list(findings.CODES.values())
    cells = {row[0].strip("`"): row[2] for row in rows(text, "column")}
    assert words(cells["kind"]) == set(findings.CODES)


def test_decisions_hold_what_is_written() -> None:
    cells = {row[0].strip("`"): row[2] for row in rows(section("`runs`"), "step")}
    decided = set(Decision("ann").to_json())
    assert words(cells["approved"]) == decided
    assert words(cells["rejected"]) == decided | {"staging"}


def test_verification_keys_are_those_of_the_code() -> None:
    listed = set(names(rows(section("Verification"), "key")))
    coded = keys_of("verify/result.py", "to_json")
    inside = keys_of("core/protocol/rules.py", "to_json")
    assert coded <= listed
    assert listed - coded <= inside | {"held"}
    assert inside <= words(section("Verification"))


def test_maintenance_keys_match_the_code() -> None:
    reported = keys_of("maintenance/run.py", "to_json")
    inside = {field.name for field in fields(run.TableResult)} | {"stream"}
    text = section("Maintenance")
    assert set(names(rows(text, "key"))) | {"stream"} == reported
    assert inside <= words(text)
    coded = keys_of("maintenance/retire.py", "to_json") | {"retired"}
    assert set(names(rows(section("Retirement"), "key"))) == coded
    cells = {row[0].strip("`"): row[2] for row in rows(section("`retired`"), "column")}
    assert words(cells["state"]) == {state.value for state in retirements.RetirementState}


def test_source_keys_are_those_of_the_code() -> None:
    listed = set(names(rows(section("Source"), "key")))
    assert listed == {field.name for field in fields(Reconciliation)} | {"agrees"}
    assert {field.name for field in fields(SourceDifference)} <= words(section("Source"))


def test_messages_of_topics_have_the_fields_that_are_written() -> None:
    text = section("18. Recordings in Kafka")
    columns = set(export_topics.message(_PAYLOAD).names)
    assert columns - {"diff"} <= words(text) | {"updates", "diff"}
    assert set(names(rows(text, "`kind`"))) == {"progress", "messages", export_topics.RECORD}
    head = TopicHeader("s", "t", 0, _TIMES, "{}", {})
    assert set(json.loads(head.to_text())) <= words(text)


def test_transaction_identities_are_those_of_the_code() -> None:
    run = RunId("<identity>", 7, "t")
    listed = {row[0]: (row[1].strip("`"), row[2]) for row in _transactions()}
    coded = {
        "fence of attempt k": run.fence(3),
        "publish, or rollback, of attempt k": run.change(3),
    }
    for what, transaction in coded.items():
        app, version = listed[f"a target: {what}"]
        assert app.replace("<generation>", "7") == transaction.app
        assert eval(version.replace("2k", "2 * 3")) == transaction.version
    sources = "".join(path.read_text(encoding="utf-8") for path in LIBRARY.rglob("*.py"))
    # Every name under which the code makes a transaction of its own.
    made = set(re.findall(r'Txn\(f"([a-z]+):', sources)) | set(
        re.findall(r'return f"([a-z]+):\{self\.identity', sources)
    )
    reported = {app.split(":")[0] for app, _ in listed.values()}
    assert made | {"claims"} == reported


def _transactions() -> list[list[str]]:
    lines = section("12. Transaction identities").splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells[2:]]


def test_features_that_lock_readers_out_are_off() -> None:
    assert delta.PLAIN == {
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "none",
        "delta.checkpointPolicy": "classic",
        "delta.enableTypeWidening": "false",
        "delta.logRetentionDuration": "interval 7 days",
    }
    assert "A log keeps 7 days (`delta.logRetentionDuration`" in flowing(
        "20. Maintenance and retirement"
    )
    text = flowing("13. What any reader may rely on")
    for feature in ("deletion vectors", "column mapping", "type widening", "checkpoints"):
        assert feature in text


# The fingerprint, computed from the text alone: it must be enough for another implementation.


class Int(int):
    """A value that is hashed as 4 bytes."""


def _flagged(value: object) -> list[object]:
    return [Int(0), None] if value is None else [Int(1), value]


def _array(*values: object) -> list[object]:
    return [Int(len(values)), *(_flagged(value) for value in values)]


def _map(**values: object) -> list[object]:
    items = [[key.encode(), *_flagged(values[key])] for key in sorted(values)]
    return [Int(len(items)), *items]


_NAN = float("nan")
ROWS: dict[str, list[object]] = {
    "1": [1],
    "CAST(NULL AS INT), 1": [None, 1],
    "1, CAST(NULL AS INT)": [1, None],
    "true, CAST(2 AS TINYINT), -3L": [1, 2, -3],
    "1.5D, CAST('NaN' AS DOUBLE), -0.0D": [1.5, _NAN, -0.0],
    "'EWR', '', 'Zürich'": [b"EWR", b"", "Zürich".encode()],
    "X'00FF'": [b"\x00\xff"],
    "CAST(12.50 AS DECIMAL(10, 2)), CAST(-1 AS DECIMAL(38, 0))": [Decimal(1250), Decimal(-1)],
    "DATE '2013-03-01', TIMESTAMP '2013-03-01 06:30:00.000001Z'": [15765, 1362119400000001],
    "TIMESTAMP_NTZ '2013-03-01 06:30:00'": [1362119400000000],
    "array(1, NULL), array('a', 'b')": [_array(1, None), _array(b"a", b"b")],
    "named_struct('x', 1, 'y', CAST(NULL AS STRING))": [[*_flagged(1), *_flagged(None)]],
    "map('b', 1, 'a', CAST(NULL AS INT))": [_map(b=1, a=None)],
    "array(named_struct('x', array(1), 'y', map(1, 2.0D)))": [
        _array([*_flagged(_array(1)), *_flagged([Int(1), [1, *_flagged(2.0)]])])
    ],
}

_ALL = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _xxh64(data: bytes, seed: int) -> int:
    """XXH64 of fewer than 32 bytes."""
    assert len(data) < 32
    value = (seed + _P5 + len(data)) & _ALL
    while len(data) >= 8:
        value ^= _rotated(int.from_bytes(data[:8], "little") * _P2 & _ALL, 31) * _P1 & _ALL
        value, data = (_rotated(value, 27) * _P1 + _P4) & _ALL, data[8:]
    if len(data) >= 4:
        value ^= int.from_bytes(data[:4], "little") * _P1 & _ALL
        value, data = (_rotated(value, 23) * _P2 + _P3) & _ALL, data[4:]
    for byte in data:
        value = _rotated(value ^ byte * _P5 & _ALL, 11) * _P1 & _ALL
    value = (value ^ value >> 33) * _P2 & _ALL
    value = (value ^ value >> 29) * _P3 & _ALL
    return value ^ value >> 32


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _ALL


def _folded(value: object, seed: int) -> int:
    if value is None:
        return seed
    if isinstance(value, list):
        for part in value:
            seed = _folded(part, seed)
        return seed
    return _xxh64(_bytes(value), seed)


def _bytes(value: object) -> bytes:
    if isinstance(value, Int):
        return struct.pack("<i", value)
    if isinstance(value, int):
        return struct.pack("<q", value)
    if isinstance(value, float):
        whole = 0x7FF8000000000000 if value != value else None
        return struct.pack("<d", value + 0.0) if whole is None else struct.pack("<q", whole)
    if isinstance(value, Decimal):
        number = int(value)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(size, "big", signed=True)
    assert isinstance(value, bytes)
    return value


def _hash(fields: list[object], seed: int) -> int:
    parts: list[object] = [Int(seed)]
    for ordinal, value in enumerate(fields):
        parts.append(None if value is None else [Int(ordinal), value])
    return _signed(_folded(parts, 42))


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("row", GOLDEN)
def test_the_text_is_enough_to_compute_a_fingerprint(row: str) -> None:
    assert (_hash(ROWS[row], 1), _hash(ROWS[row], 2)) == GOLDEN[row]


def test_the_worked_example_is_right() -> None:
    lines = section("6. The fingerprint").splitlines()
    cells = [re.fullmatch(r"\| (.+) \| (-?\d+) \| (-?\d+) \|", line) for line in lines]
    actual = {m[1].strip("`"): (int(m[2]), int(m[3])) for m in cells if m}
    both = actual.pop("both rows")
    assert len(actual) == 2
    assert actual == {row: GOLDEN[row] for row in actual}
    first, second = zip(*actual.values(), strict=True)
    assert both == (_signed(sum(first)), _signed(sum(second)))
    assert sum(first) != _signed(sum(first))
