"""Text behind a value, and records that make no row: each of them is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyspark.sql import functions as F

from capstan.capture.json_text import has_rest
from capstan.capture.run import capture
from capstan.capture.source_reconciliation import reconcile
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
        folder,
        source=source,
        workers=ByKey(("id",), 2),
        time=EventTime(column="at", every=HOUR),
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


def test_what_follows_a_value_is_found_under_the_options_of_its_parser(
    spark: SparkSession,
) -> None:
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
    found = rows.select("text", has_rest(F.col("text"), {}).alias("rest")).collect()
    assert {row["text"]: row["rest"] for row in found} == cases
    one = spark.createDataFrame([("{'a': {}} // c",), ("{'a': {}} /* c */ 1",)], "text STRING")
    options = {"allowComments": "true", "allowSingleQuotes": "true"}
    rest = one.select(has_rest(F.col("text"), options).alias("rest")).collect()
    assert [row["rest"] for row in rest] == [False, True]
