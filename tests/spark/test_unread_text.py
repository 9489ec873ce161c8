"""Text behind a value, and records that make no row: each of them is counted."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from pyspark.sql import functions as F

from capstan.capture import run as capture_run
from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import capture
from capstan.capture.source.files.listing import SourceListing
from capstan.capture.source.text.json_text import has_rest
from capstan.capture.source.text.line_checks import CheckedLines, first_bytes
from capstan.core.config import ByKey, EventTime, Source
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support.sample_streams import HOUR, little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.core.config import Stream

SCHEMA = "id INT, at TIMESTAMP"
ARRAY = f"from_json(value, 'ARRAY<STRUCT<{SCHEMA.replace(' ', ': ', 1).replace('at ', 'at: ')}>>')"


def box(number: int) -> str:
    return f'{{"id": {number}, "at": "2024-05-01T00:00:00Z"}}'


def text_stream(folder: Path, text: str, source: Source) -> Stream:
    folder.mkdir()
    (folder / "0.txt").write_bytes(text.encode())
    return little_stream(
        folder, source=source, workers=ByKey(("id",), 2), time=EventTime(column="at", every=HOUR)
    )


def raw_of(lake: Lake, stream: Stream) -> list[str]:
    late = pl.read_delta(open_tape(lake, stream.name).paths.late)
    return late.filter(pl.col("reason") == "malformed")["raw"].to_list()


BAD_LINES = [
    f"{box(2)} {box(3)}",
    f"{box(4)}, {box(5)}",
    f"{box(6)} xyz",
    f"{box(7)}}}",
    f'{box(8)}, "end": 0}}',
    f"[{box(9)}] {box(10)}",
    f"{box(11)}\0",
    "null",
]


def test_json_lines_lose_nothing_behind_a_value(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    whole = [box(1), f"[{box(12)},{box(13)}]", f"{box(14)} \r", '{"id": 15, "n": {"a": [1]}}']
    text = "\n".join([*whole[:3], "", "  ", "[]", *BAD_LINES, whole[3][:-1] + f", {box(15)[1:]}"])
    source = Source(format="json", path=str(tmp_path / "in"), schema=SCHEMA)
    stream = text_stream(tmp_path / "in", text, source)
    done = capture(spark, lake, stream)
    assert (done.records, done.late) == (5, {"malformed": len(BAD_LINES), "no-row": 1})
    assert done.fed == done.records + sum(done.late.values())
    assert sorted(raw_of(lake, stream)) == sorted(BAD_LINES)
    assert reconcile(spark, open_tape(lake, stream.name), stream, deep=True).agrees


@pytest.mark.parametrize("generator", ["inline({})", "explode({}) AS box"])
def test_a_generator_over_nothing_keeps_its_record(
    spark: SparkSession, lake: Lake, tmp_path: Path, generator: str
) -> None:
    bad = ["not json at all", f"[{box(3)}", "null", f"[{box(4)}] x"]
    lines = [f"[{box(1)},{box(2)}]", "[]", *bad]
    made = generator.format(ARRAY)
    further = () if "inline" in made else ("7 AS id", "TIMESTAMP '2024-05-01 00:00:00' AS at")
    source = Source(
        format="text",
        path=str(tmp_path / "in"),
        schema="value STRING",
        select=(made, *further),
        where="id > 0",
    )
    stream = text_stream(tmp_path / "in", "\n".join(lines), source)
    done = capture(spark, lake, stream)
    assert (done.fed, done.records, done.late) == (7, 2, {"malformed": 4, "no-row": 1})
    assert sorted(raw_of(lake, stream)) == sorted(bad)
    assert reconcile(spark, open_tape(lake, stream.name), stream, deep=True).agrees


def test_a_second_document_of_a_file_is_not_lost(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = Source(
        format="json", path=str(tmp_path / "in"), schema=SCHEMA, options={"multiLine": "true"}
    )
    stream = text_stream(tmp_path / "in", f"{box(1)}\n{box(2)}", source)
    (tmp_path / "in" / "1.json").write_text(f"[{box(3)},\n{box(4)}]")
    (tmp_path / "in" / "2.json").write_bytes(box(5).encode("utf-16"))
    done = capture(spark, lake, stream)
    assert (done.records, done.late) == (3, {"malformed": 1})
    assert raw_of(lake, stream) == [f"{box(1)}\n{box(2)}"]


def test_text_after_a_value_is_found_with_parser_options(spark: SparkSession) -> None:
    cases = {
        '{"a": {"b": "} {"}} ': False,
        '{"a": [1, {"b": 2}]}': False,
        '{"a": {}} // c': True,
        '{"a": {}}, "b": {}': True,
        '{"a": {}}, "end": 0} x': True,
        '[{"a": []}], "end": 0} x': True,
        '[[]], "x": [[]': True,
        '{"a": {}}, {"a": {}}': True,
        '[1] }': True,
        '{"a": []}]': True,
    }  # fmt: skip
    rows = spark.createDataFrame([(text,) for text in cases], "text STRING")
    actual = rows.select("text", has_rest(F.col("text"), {}).alias("rest")).collect()
    assert {row["text"]: row["rest"] for row in actual} == cases
    one = spark.createDataFrame([("{'a': {}} // c",), ("{'a': {}} /* c */ 1",)], "text STRING")
    options = {"allowComments": "true", "allowSingleQuotes": "true"}
    rest = one.select(has_rest(F.col("text"), options).alias("rest")).collect()
    assert [row["rest"] for row in rest] == [False, True]


NESTED = '{"id": 1, "n": {"a": [{"b": "}"}]}, "at": "2024-05-01T00:00:00Z"}'


@pytest.mark.parametrize(
    ("lines", "as_text"),
    [
        ([box(1), "", NESTED, f"  {NESTED} \r"], False),
        (["\ufeff" + box(1)], False),
        (["no JSON at all", '{"id": 1'], False),
        (["{'id': 1}"], False),
        *(([line], True) for line in BAD_LINES),
        (["[]"], True),
        ([f"[{box(1)}]"], True),
        (["{'id': 1} {'id': 2}"], True),
        ([f"{NESTED} {box(1)}"], True),
        ([f'{NESTED}, "capstan\'s end": 0}} {box(1)}'], True),
    ],
)
@pytest.mark.parametrize("padding", [0, 600])
def test_only_files_with_more_than_objects_are_read_as_text(
    spark: SparkSession, tmp_path: Path, lines: list[str], as_text: bool, padding: int
) -> None:
    text = "\n".join([*lines, *[NESTED] * padding])
    (tmp_path / "0.json").write_text(text, encoding="utf-8")
    source = Source(format="json", path=str(tmp_path))
    listing = SourceListing.of(source)
    actual = CheckedLines.of(source, listing)
    assert actual is not None
    assert listing is not None
    actual.look_at(spark, {path: first_bytes(path) for path in listing.files})
    assert actual.as_text == as_text


def test_a_file_that_comes_while_others_are_read_loses_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(
        format="json", path=str(tmp_path / "in"), schema=SCHEMA, options={"maxFilesPerTrigger": "1"}
    )
    stream = text_stream(tmp_path / "in", box(1), source)
    (tmp_path / "in" / "1.txt").write_text(box(2))

    read = capture_run.read_source

    def behind_the_look(*args: Any, **kwargs: Any) -> Any:
        (tmp_path / "in" / "2.txt").write_text(f"{box(3)} {box(4)}")
        return read(*args, **kwargs)

    monkeypatch.setattr(capture_run, "read_source", behind_the_look)
    done = capture(spark, lake, stream)
    assert (done.fed, done.records, done.late) == (3, 2, {"malformed": 1})
    assert raw_of(lake, stream) == [f"{box(3)} {box(4)}"]


PIECES = [box(1), box(2), NESTED, "[]", f"[{box(3)}, {box(4)}]", "null", "7", '"x"', "xyz", "{"]
PIECES += [
    "}",
    "]",
    ",",
    " ",
    "\t",
    "\r",
    "\0",
    "\ufeff",
    '{"id": "much"}',
    "[[]]",
    "/* c */",
    "\\",
]


def random_lines(draw: Random) -> list[str]:
    """Lines of one to three pieces, most of them records."""
    usual = [box(n) for n in range(5)]
    return [
        "".join(draw.choices(PIECES, k=draw.choice([1, 1, 2, 3])))
        if draw.random() < 0.5
        else draw.choice(usual)
        for _ in range(60)
    ]


def rows_of(line: str) -> int:
    """The rows that a line of JSON makes or, with none, the one that says so."""
    try:
        value = json.loads(line.removeprefix("\ufeff"))
    except ValueError:
        return 1
    return max(1, len(value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("kind", ["json", "generator", "csv"])
def test_of_random_texts_each_line_is_counted(
    spark: SparkSession, lake: Lake, tmp_path: Path, kind: str
) -> None:
    draw = Random(f"{kind} 14")
    contents = ["\n".join(random_lines(draw)) for _ in range(4)]
    source = {
        "json": Source(format="json", path=str(tmp_path / "in"), schema=SCHEMA),
        "csv": Source(format="csv", path=str(tmp_path / "in"), schema="id INT, at STRING, x INT"),
        "generator": Source(
            format="text",
            path=str(tmp_path / "in"),
            schema="value STRING",
            select=(f"inline({ARRAY})",),
        ),
    }[kind]
    if kind == "csv":
        contents = [content.replace('"', "") for content in contents]
    stream = text_stream(tmp_path / "in", contents[0], source)
    for number, content in enumerate(contents[1:], 1):
        (tmp_path / "in" / f"{number}.txt").write_bytes(content.encode())
    done = capture(spark, lake, stream)
    assert done.fed == done.records + sum(done.late.values())
    every = [line for content in contents for line in re.split("\r\n|\n|\r", content)]
    expected = {
        "json": sum(rows_of(line) for line in every if line.removeprefix("\ufeff").strip(" \t")),
        "csv": sum(bool(line.strip("".join(map(chr, range(33))))) for line in every),
        # A line of blanks is a record of a source of text.
        "generator": sum(rows_of(line) for line in every),
    }[kind]
    assert done.fed == expected
    assert reconcile(spark, open_tape(lake, stream.name), stream, deep=True).agrees
