"""Recordings of timely 0.32 onto tapes, off them, and into tables."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from capstan.audit.result import TAPE
from capstan.cli import main
from capstan.core.config import ProjectConfig
from capstan.core.protocol import Messages, Progress, Release, Rule
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.interop.timely import EventTypes, EventWriter, encode_event
from capstan.interop.transfer.export_files import export_recordings, form_of
from capstan.interop.transfer.import_files import ImportResult, import_recordings
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.interop.transfer.serve import Address, serve
from capstan.replay.planning.request import Request
from capstan.replay.run import replay, rollback
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.delta import delta
from capstan.storage.tape import index
from capstan.storage.tape.region_sql import stamp_sql
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.verify import verify
from tests.support.socket_receivers import receivers
from tests.support.socket_senders import heard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.audit import Audit
    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape

CONFIG = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})
CONFORMANCE = Path(__file__).parent.parent / "conformance"
TIMELY = CONFORMANCE / "timely032"


def put(
    spark: SparkSession, lake: Lake, name: str, folder: Path, form: Format, **options: str
) -> ImportResult:
    given = Form.of_folder(folder, form, **options)
    return import_recordings(spark, lake, name, find_recordings(folder, form), given)


def exported(
    spark: SparkSession, lake: Lake, tape: Tape, out: Path, form: Form
) -> dict[str, bytes]:
    workers = index.worker_labels(tape, newest_cut(tape))
    export_recordings(spark, lake, tape, out, form, workers=workers)
    return {path.name: path.read_bytes() for path in out.glob("worker-*")}


def files(folder: Path, form: Format) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"worker-?{form.suffix}")}


@pytest.mark.parametrize("form", Format)
def test_one_element_comes_out_as_it_came_in(
    spark: SparkSession, lake: Lake, tmp_path: Path, form: Format
) -> None:
    case = "g0_strings_w3"
    done = put(spark, lake, "new", TIMELY / case, form)
    assert done.to_json()["timely"] == {"release": "0.32", "assumed": True}
    tape = open_tape(lake, "new")
    assert tape.settings.fixed["import"]["timely"] == "0.32"
    verify(spark, lake, tape, deep=True).raise_for_violations()
    # Declaring what was assumed is the same import.
    assert put(spark, lake, "new", TIMELY / case, form, timely="0.32").unchanged
    other = Format.JSONL if form is Format.TIMELY else Format.TIMELY
    for written in (form, other):
        out = tmp_path / f"out-{written}"
        actual = exported(spark, lake, tape, out, form_of(tape, written))
        assert actual == files(TIMELY / case, written)
        assert json.loads((out / "case.json").read_text())["timely"] == "0.32"
        # The bytes of 0.31: those that the former release wrote.
        out = tmp_path / f"old-{written}"
        actual = exported(spark, lake, tape, out, form_of(tape, written, timely="0.31"))
        assert actual == files(CONFORMANCE / "timely" / case, written)
        assert "timely" not in json.loads((out / "case.json").read_text())


def test_a_tape_of_0_31_states_no_release(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    folder = CONFORMANCE / "timely" / "a0_book_w5"
    done = put(spark, lake, "old", folder, Format.TIMELY)
    assert done.to_json()["timely"] == {"release": "0.31", "assumed": True}
    tape = open_tape(lake, "old")
    assert "timely" not in tape.settings.fixed["import"]
    form = form_of(tape, Format.TIMELY, timely="0.32")
    upgraded = TIMELY / "a0_book_w5"
    assert exported(spark, lake, tape, tmp_path / "out", form) == files(upgraded, Format.TIMELY)


def stamped_cases() -> list[str]:
    return sorted(path.name for path in TIMELY.glob("[sm]*_w*"))


def records_of(case: str) -> Counter[str]:
    """The records of a case, from its transcripts."""
    lines = [
        json.loads(line)
        for path in (TIMELY / case).glob("worker-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return Counter(json.dumps(data) for line in lines for data in line.get("data", ()))


def copied(spark: SparkSession, lake: Lake, table: str) -> Counter[str]:
    rows = delta.load(spark, lake.table(table)).drop("_worker", "_time").collect()
    return Counter(json.dumps(row[0] if len(row) == 1 else list(row)) for row in rows)


@pytest.mark.parametrize("number", range(len(stamped_cases())))
def test_stamps_come_out_as_they_came_in(
    spark: SparkSession, lake: Lake, tmp_path: Path, number: int
) -> None:
    case, form = stamped_cases()[number], list(Format)[number % 2]
    put(spark, lake, case, TIMELY / case, form)
    assert put(spark, lake, case, TIMELY / case, form).unchanged
    tape = open_tape(lake, case, stamps=True)
    expected = json.loads((TIMELY / case / "expected.json").read_text())
    assert format_of(tape.paths.events) == (3 if set(expected["elements"]) - {"1"} else 2)
    assert verify(spark, lake, tape, deep=True).raise_for_violations().valid
    for written in Format:
        actual = exported(spark, lake, tape, tmp_path / written, form_of(tape, written))
        for name, sent in files(TIMELY / case, written).items():
            # An unfinished event at the end is left out.
            unfinished = expected["files"].get(name, {}).get("trailing_bytes", 0)
            assert actual[name] == sent[: len(sent) - unfinished]
    closed = expected["closed"]
    for peers in range(1, 6) if number == 0 else [1 + number % 5]:
        table = f"{case}_{peers}"
        request = Request(case, table, peers=peers, partial=not closed)
        certificate = replay(spark, lake, CONFIG, request).certificate
        assert certificate is not None
        if closed:
            assert copied(spark, lake, table) == records_of(case)
            assert certificate.records == expected["records"]
        else:
            assert not copied(spark, lake, table) - records_of(case)
        timeless = certificate.timeless if tape.stamped else {"read": 0, "left_out": 0}
        under_none = sum(n for stamp, n in expected["records_by_stamp"] if stamp == [])
        assert timeless == {"read": under_none, "left_out": 0}


def test_sockets_in_the_form_of_0_32(spark: SparkSession, lake: Lake) -> None:
    case = "g0_strings_w3"
    sent = files(TIMELY / case, Format.TIMELY)
    put(spark, lake, "sent", TIMELY / case, Format.TIMELY)
    tape = open_tape(lake, "sent")
    with receivers(len(sent)) as (port, got):
        workers = tuple(index.worker_labels(tape, newest_cut(tape)))
        address = Address("127.0.0.1", port)
        serve(spark, lake, tape, form_of(tape, Format.TIMELY), address, workers=workers)
    assert [bytes(item) for item in got] == [sent[name] for name in sorted(sent)]


@pytest.mark.parametrize(
    ("case", "die_at"),
    [
        ("s1_leave_w2", ""),
        ("s7_unstamped_w2", ""),
        ("s0_antichain_w2", "tape.columns"),
        ("s0_antichain_w2", "tape.stamped"),
    ],
)
def test_a_listener_makes_a_tape_of_stamps_when_they_come(
    spark: SparkSession, lake: Lake, tmp_path: Path, case: str, die_at: str
) -> None:
    form = Form.of_folder(TIMELY / case, Format.TIMELY, timely="0.32")
    sent = dict(enumerate(data for _, data in sorted(files(TIMELY / case, Format.TIMELY).items())))
    if die_at:
        with pytest.raises(InterruptedError):
            heard(spark, lake, "heard", form, sent, die_at)
        before = open_tape(lake, "heard", stamps=True)
        assert before.stamped == (die_at == "tape.stamped")
        assert newest_cut(before).commit == -1
    found = heard(spark, lake, "heard", form, sent)
    assert not found.refused
    tape = open_tape(lake, "heard", stamps=True)
    assert verify(spark, lake, tape, deep=True).valid
    assert exported(spark, lake, tape, tmp_path / "out", form) == files(
        TIMELY / case, Format.TIMELY
    )


@pytest.mark.parametrize(
    ("time", "words"),
    [(1, "read as timely 0.32; it fits timely 0.31"), (0, "the same bytes for messages at time 0")],
)
def test_a_sender_of_the_other_release_is_refused(
    spark: SparkSession, lake: Lake, time: int, words: str
) -> None:
    form = Form.from_options(
        Format.TIMELY, time_type="u64", record_type="string", timely=Release.V032
    )
    assert form.types is not None
    sent = encode_event(form.types, Messages.of((time,), ["x"]), Release.V031)
    found = heard(spark, lake, "heard", form, {0: sent})
    assert (found.events, found.records, found.refused) == (0, 0, (0,))
    assert words in found.faults[0]


def test_ranges_rollbacks_and_audits_of_stamps(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Of one coordinate: three ranges in turn have what one copy has, but for no element."""
    put(spark, lake, "line", TIMELY / "s1_leave_w2", Format.TIMELY)
    parts: list[dict[str, str]] = [{"until": "1"}, {"since": "1", "until": "2"}, {"since": "2"}]
    runs = []
    for part in parts:
        done = replay(spark, lake, CONFIG, Request("line", "parts", **part)).certificate
        assert done is not None
        assert done.timeless == {"read": 0, "left_out": 0}
        runs.append(done)
    assert all(done.records for done in runs)
    assert copied(spark, lake, "parts") == records_of("s1_leave_w2")
    assert main(["--lake", lake.root, "audit", "--against", "parts", "line"]) == 0
    assert main(["--lake", lake.root, "audit", str(runs[1].run)]) == 0
    rollback(spark, lake, CONFIG, str(runs[1].run))
    assert copied(spark, lake, "parts").total() == runs[0].records + runs[2].records
    # Records under no element have no time: a range that is bounded leaves them out.
    put(spark, lake, "none", TIMELY / "s7_unstamped_w2", Format.TIMELY)
    some = replay(spark, lake, CONFIG, Request("none", "some", until="100")).certificate
    assert some is not None
    assert (some.records, some.timeless) == (4, {"read": 0, "left_out": 8})
    everything = replay(spark, lake, CONFIG, Request("none", "some")).certificate
    assert everything is not None
    assert (everything.records, everything.timeless) == (12, {"read": 8, "left_out": 0})
    assert copied(spark, lake, "some") == records_of("s7_unstamped_w2")
    assert main(["--lake", lake.root, "audit", "--against", "some", "none"]) == 0
    assert main(["--lake", lake.root, "maintain", "--all"]) == 0
    assert copied(spark, lake, "some") == records_of("s7_unstamped_w2")
    rollback(spark, lake, CONFIG, str(everything.run))
    assert copied(spark, lake, "some").total() == 4
    for command in (["streams"], ["show", "none"], ["plan", "none", "--into", "some"]):
        assert main(["--lake", lake.root, *command]) == 0


def test_ranges_of_several_coordinates(spark: SparkSession, lake: Lake) -> None:
    case = "s0_antichain_w2"
    put(spark, lake, "grid", TIMELY / case, Format.TIMELY)
    # In all times a record is at its first element, and in a range of t1 maybe at another one.
    for axis, code in (("t0", 0), ("t1", 2)):
        runs = [
            replay(spark, lake, CONFIG, Request("grid", axis, since=since, until=until)).certificate
            for since, until in pairwise((None, f"{axis}=1", f"{axis}=3", None))
        ]
        rows = copied(spark, lake, axis)
        assert rows == records_of(case)
        assert main(["--lake", lake.root, "audit", "--against", axis, "grid"]) == code
        assert main(["--lake", lake.root, "verify", "grid", "--deep"]) == 0
        table, inner, last = DeltaTable(lake.table(axis)), runs[1], runs[2]
        assert inner is not None
        assert last is not None
        rollback(spark, lake, CONFIG, str(last.run))
        left = copied(spark, lake, axis)
        assert (left <= rows, left.total()) == (True, rows.total() - last.records)
        within = delta.load(spark, table.table_uri).where(f"_time.{axis} BETWEEN 1 AND 2")
        table.delete(f"value = {within.agg(F.min('value')).collect()[0][0]}")
        audit = audited(spark, lake, str(inner.run))
        assert (audit.differing, audit.totals["missing"]) == (1, 1)
    rows = copied(spark, lake, "t0")
    with pytest.raises(InvalidRequestError, match="are elsewhere"):
        replay(spark, lake, CONFIG, Request("grid", "t0", until="t1=1"))
    assert copied(spark, lake, "t0") == rows


def audited(spark: SparkSession, lake: Lake, run: str) -> Audit:
    """The audit of a run as it stands in its table."""
    return audit_run(spark, lake, CONFIG, require_auditable(lake, run, None), deep=True).audit


def test_an_audit_finds_rows_of_records_with_several_times_and_with_none(
    spark: SparkSession, lake: Lake
) -> None:
    put(spark, lake, "none", TIMELY / "m1_after_close_w2", Format.TIMELY)
    done = replay(spark, lake, CONFIG, Request("none", "all")).certificate
    assert done is not None
    table, run = DeltaTable(lake.table("all")), str(done.run)
    assert audited(spark, lake, run).passed
    table.delete("value = 12")
    table.update(updates={"value": "99"}, predicate="value = 14")
    # To the last of three times, as a record without a time is.
    spark.sql(
        f"UPDATE delta.`{table.table_uri}` SET _time = named_struct('t', 9L) "
        "WHERE value IN (11, 15)"
    )
    found = audited(spark, lake, run)
    assert (found.differing, found.totals) == (3, {"missing": 3, "extra": 2, "changed": 1, TAPE: 0})
    rows = Counter((each.worker, each.time, each.kind) for each in found.findings)
    assert rows == {
        (1, (None,), "missing"): 2, (1, (None,), "changed"): 1,
        (1, (4,), "missing"): 1, (1, (9,), "extra"): 2,
    }  # fmt: skip


def test_a_row_without_a_time_is_extra_until_the_stream_has_ended(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """An audit without a range finds it also where the range that it audits ends."""
    types = EventTypes.of("u64", "u64")
    events = [Messages.of((0,), [1]), Messages.under([], [2]), Progress.of([((0,), -1), ((1,), 1)])]
    sent = b"".join(encode_event(types, event, Release.V032) for event in events)
    (tmp_path / "worker-0.bin").write_bytes(sent)
    (tmp_path / "case.json").write_text(json.dumps({**types.to_json(), "timely": "0.32"}))
    put(spark, lake, "open", tmp_path, Format.TIMELY)
    done = replay(spark, lake, CONFIG, Request("open", "t", partial=True)).certificate
    assert done is not None
    assert (done.records, done.timeless) == (1, {"read": 0, "left_out": 1})
    audit = ["--lake", lake.root, "audit", "open", "--against", "t"]
    assert main(audit) == 0
    row = {"_worker": [0], "_time": [None], "value": [2]}
    write_deltalake(
        lake.table("t"),
        pa.table(row, schema=pa.schema(DeltaTable(lake.table("t")).schema().to_arrow())),
        mode="append",
    )
    assert [main(audit), main([*audit, "--until", "1"])] == [1, 0]


@pytest.mark.parametrize("form", Format)
def test_the_form_of_0_31_has_no_place_for_stamps(
    spark: SparkSession, lake: Lake, tmp_path: Path, form: Format
) -> None:
    """No file is left either of a worker whose messages have one time each."""
    shutil.copytree(TIMELY / "s1_leave_w2", tmp_path / "sent")
    path = tmp_path / "sent" / f"worker-2{form.suffix}"
    with path.open("wb") as file:
        writer = EventWriter(file, Form.of_folder(path.parent, form).encoding(2), str(path))
        writer.push(Progress.of([((0,), -1)]))
        writer.flush()
    put(spark, lake, "s1", path.parent, form)
    tape = open_tape(lake, "s1", stamps=True)
    with pytest.raises(InvalidRequestError, match="where one time is needed") as caught:
        exported(spark, lake, tape, tmp_path / "out", form_of(tape, form, timely="0.31"))
    assert caught.value.code == "CAP-STAMP"
    assert not list((tmp_path / "out").glob("*worker*"))


def by_stamp(spark: SparkSession, tape: Tape) -> Counter[tuple[str, int]]:
    """The records of a tape by their stamps."""
    rows = delta.load(spark, tape.paths.records).selectExpr(
        "to_json(coalesce(stamp, array(time))) AS stamp", "data.value"
    )
    return Counter((row["stamp"], row["value"]) for row in rows.collect())


def test_a_recapture_keeps_stamps(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Of a stream that grows, in two commits: each record is in one of them."""
    case = "s0_antichain_w2"
    form = Form.of_folder(TIMELY / case, Format.TIMELY, timely="0.32")
    whole = [data for _, data in sorted(files(TIMELY / case, Format.TIMELY).items())]
    ends = [len(data) * 3 // 5 for data in whole]
    cut = zip(whole, ends, strict=True)
    heard(spark, lake, "grows", form, {n: data[:end] for n, (data, end) in enumerate(cut)}, idle=2)
    first = recapture(spark, lake, RecaptureRequest("grows", "copy", peers=3))
    tape = open_tape(lake, "grows", stamps=True)
    half = exported(spark, lake, tape, tmp_path / "half", form)
    begun = [len(data) for _, data in sorted(half.items())]
    assert all(0 < start <= end for start, end in zip(begun, ends, strict=True))
    rest = zip(whole, begun, strict=True)
    heard(spark, lake, "grows", form, {n: data[start:] for n, (data, start) in enumerate(rest)})
    second = recapture(spark, lake, RecaptureRequest("grows", "copy", peers=3))
    assert first.records
    assert second.records
    copy = open_tape(lake, "copy", stamps=True)
    assert verify(spark, lake, copy, deep=True).valid
    expected = by_stamp(spark, open_tape(lake, "grows", stamps=True))
    assert by_stamp(spark, copy) == expected
    assert expected.total() == first.records + second.records
    out = form_of(copy, Format.TIMELY, "Product<u64,u64>", "u64", "0.32")
    assert len(exported(spark, lake, copy, tmp_path / "out", out)) == 3
    # Records that are moved to another stamp of their time, worker and batch are missed.
    records = delta.load(spark, copy.paths.records).where("stamp IS NOT NULL")
    stamps = F.collect_set(F.to_json("stamp")).alias("stamps")
    cells = records.groupBy("worker", "batch", "time").agg(stamps).where("size(stamps) > 1")
    worker, (one, other, *_) = (
        cells.orderBy("worker", "time").select("worker", "stamps").collect()[0]
    )
    spark.sql(
        f"UPDATE delta.`{copy.paths.records}` SET stamp = from_json('{other}', "
        f"'ARRAY<STRUCT<t0: BIGINT, t1: BIGINT>>') "
        f"WHERE worker = {worker} AND to_json(stamp) = '{one}'"
    )
    wrong = [each for each in verify(spark, lake, copy, deep=True).workers if each.violation]
    assert [(each.worker, each.violation.rule) for each in wrong] == [(worker, Rule.CONTENT)]
    # What has no element is in a re-capture of everything alone. One stamp has an element twice.
    put(spark, lake, "none", TIMELY / "m1_after_close_w2", Format.TIMELY)
    recapture(spark, lake, RecaptureRequest("none", "all", peers=1))
    actual = by_stamp(spark, open_tape(lake, "all", stamps=True))
    assert actual == by_stamp(spark, open_tape(lake, "none", stamps=True))
    assert sum(n for (stamp, _), n in actual.items() if stamp == "[]") == 7
    assert actual['[{"t":4},{"t":4},{"t":9}]', 11] == 1


def test_a_recapture_has_each_record_as_often_and_the_first_element_as_its_time(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Also of records that are in it by another element, which is complete before."""
    types, folder = EventTypes.of("Product<u64,u64>", "u64"), tmp_path / "open"
    several = [(0, 1), (1, 0)]
    events = [Messages.under(several, [7, 7]), Messages.of((0, 1), [7]),
              Messages.under(several, [7]), Progress.of([((0, 1), 1), ((0, 0), -1)])]  # fmt: skip
    folder.mkdir()
    sent = b"".join(encode_event(types, event, Release.V032) for event in events)
    for worker in range(2):
        (folder / f"worker-{worker}.bin").write_bytes(sent)
    (folder / "case.json").write_text(json.dumps({**types.to_json(), "timely": "0.32"}))
    put(spark, lake, "open", folder, Format.TIMELY)
    assert recapture(spark, lake, RecaptureRequest("open", "copy")).records == 6
    rows = delta.load(spark, open_tape(lake, "copy", stamps=True).paths.records).collect()
    found = Counter((*row["time"], *map(tuple, row["stamp"]), row["data"][0]) for row in rows)
    assert found == {(0, 1, *several, 7): 6}


def test_a_recapture_has_a_form(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    put(spark, lake, "new", TIMELY / "g0_strings_w3", Format.TIMELY)
    put(spark, lake, "old", CONFORMANCE / "timely" / "g0_strings_w3", Format.TIMELY)
    put(spark, lake, "several", TIMELY / "s1_leave_w2", Format.TIMELY)

    def recorded(stream: str, into: str, **given: str) -> Tape:
        recapture(spark, lake, RecaptureRequest(stream, into, peers=2, **given))  # type: ignore[arg-type]
        return open_tape(lake, into, stamps=True)

    # That of the stream; of 0.31 nothing is stated, as before.
    assert recorded("new", "a").settings.timely == "0.32"
    assert "timely" not in recorded("old", "b").settings.fixed
    assert "timely" not in recorded("old", "b", timely="0.31").settings.fixed
    for peers, timely, words in ((2, "0.32", "b has the form of timely 0.31, which --timely 0.32"),
                                 (3, "0.32", "does not record 3 workers")):  # fmt: skip
        with pytest.raises(InvalidRequestError, match=words) as caught:
            recapture(spark, lake, RecaptureRequest("old", "b", peers=peers, timely=timely))
        assert caught.value.code == "CAP-DECLARED"
    forms = {}
    for stream, into, timely in (("new", "c", "0.31"), ("old", "d", "0.32")):
        tape = recorded(stream, into, timely=timely)
        assert tape.settings.timely == timely
        assert recorded(stream, into).settings == tape.settings
        form = forms[into] = form_of(tape, Format.JSONL)
        assert form.release == timely
        words = f"{into} has the form of timely {timely}, which --timely {form.release.other}"
        with pytest.raises(InvalidRequestError, match=words) as caught:
            recorded(stream, into, timely=form.release.other)
        assert caught.value.code == "CAP-DECLARED"
    stated = [
        b'"stamp":'
        in b"".join(exported(spark, lake, open_tape(lake, name), tmp_path / name, form).values())
        for name, form in forms.items()
    ]
    assert stated == [False, True]
    with pytest.raises(InvalidRequestError, match="is declared as one of timely 0.31") as caught:
        recorded("several", "e", timely="0.31")
    assert caught.value.code == "CAP-STAMP"
    assert "e" not in lake.streams()
    with pytest.raises(InvalidRequestError, match="CAP-TIMELY"):
        recorded("several", "e", timely="0.30")
    line = ["--lake", lake.root, "replay", "several"]
    assert main([*line, "--into-stream", "e", "--timely", "0.32", "--peers", "2"]) == 0
    assert by_stamp(spark, open_tape(lake, "e", stamps=True)) == by_stamp(
        spark, open_tape(lake, "several", stamps=True)
    )
    assert main([*line, "--into", "t", "--timely", "0.32"]) == 2


def test_a_range_has_the_same_records_on_spark(spark: SparkSession) -> None:
    """As SQL, a range has a stamp where `Region.place` says, for random ranges and stamps."""
    random = Random(40)
    time_type = TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT)

    def times(most: int) -> list[Time]:
        return [Time((random.randrange(4), random.randrange(4))) for _ in range(most)]

    def bound() -> tuple[int | None, int | None]:
        values: list[int | None] = [None, None]
        values[random.randrange(2)] = random.choice([None, *range(5)])
        return values[0], values[1]

    regions = [
        Region(
            Box(bound(), bound()),
            random.choice([None, Antichain.of(times(random.randrange(3)))]),
            random.choice([None, Antichain.of(times(random.randrange(3)))]),
        )
        for _ in range(40)
    ]
    stamps = [tuple(sorted(times(random.randrange(4)))) for _ in range(200)]
    rows = [
        (number, stamp[0] if stamp else None, None if len(stamp) == 1 else list(stamp))
        for number, stamp in enumerate(stamps)
    ]
    time = "STRUCT<t0: BIGINT, t1: BIGINT>"
    frame = spark.createDataFrame(rows, f"number INT, time {time}, stamp ARRAY<{time}>")
    parts = [stamp_sql(time_type, region) for region in regions]
    found = frame.selectExpr(
        "number", *(f"CASE WHEN {where} THEN {place} END" for where, place in parts)
    )
    for number, *places in found.collect():
        expected = [region.place(stamps[number]) for region in regions]
        assert [None if place is None else Time(place) for place in places] == expected
