"""Text that Spark would silently misread: quoted line breaks, duplicate keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.core.config import ByKey, EpochTime, Source, Stream
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake, is_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADER = "id,note\n"
BROKEN = 'a,"one\ntwo"\nb,plain\n'


def lay_text(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def text_stream(folder: Path, kind: str = "csv", **options: str) -> Stream:
    return Stream(
        name="text",
        source=Source(
            format=kind,
            path=str(folder),
            schema="id STRING, note STRING",
            options={"header": "true", **options} if kind == "csv" else options,
        ),
        workers=ByKey(("id",), 1),
        time=EpochTime(),
    )


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (BROKEN, {}),
        ('"a\nb",x\n', {}),
        ('a,"say ""hi""\nthere"\n', {"escape": '"'}),
        ("a;'one\ntwo'\n", {"sep": ";", "quote": "'"}),
    ],
    ids=["last", "first", "doubled", "other quotes"],
)
def test_a_quoted_line_break_needs_multiline(
    spark: SparkSession, tmp_path: Path, lines: str, options: dict[str, str]
) -> None:
    header = HEADER.replace(",", options.get("sep", ","))
    lay_text(tmp_path / "src" / "a.csv", header + lines)
    lake, stream = Lake.at(tmp_path / "lake"), text_stream(tmp_path / "src", **options)
    with pytest.raises(InvalidRequestError, match="does not end on its line") as caught:
        capture(spark, lake, stream)
    assert (caught.value.code, caught.value.fields["file"]) == ("CAP-MALFORMED", "a.csv")
    assert not is_table(lake.stream("text").events)
    together = replace(
        stream,
        source=replace(stream.source, options={**stream.source.options, "multiLine": "true"}),
    )
    assert capture(spark, lake, together).records == lines.count("\n") - 1
    data = pl.read_delta(lake.stream("text").records)["data"].struct.unnest()
    assert any("\n" in text for row in data.rows() for text in row)


def test_of_two_files_of_one_name_the_broken_one_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    lay_text(tmp_path / "src" / "a.csv", HEADER + 'a,"plain"\n')
    for day, line in (("day 1", 'a,"plain"\n'), ("day 2", BROKEN), ("day 3", 'a,"plain"\n')):
        lay_text(tmp_path / "src" / day / "a.csv", HEADER + line)
    with pytest.raises(InvalidRequestError, match="does not end on its line") as caught:
        capture(spark, Lake.at(tmp_path / "lake"), text_stream(tmp_path / "src"))
    assert caught.value.fields["file"] == "day 2/a.csv"


def test_quotes_that_end_on_their_line_are_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = ['"a","x, y"', 'b,5" disk', 'c,"say ""hi"""', r'd,"a \" b"', 'e,""', "f,plain"]
    lay_text(tmp_path / "src" / "a.csv", HEADER + "\n".join(rows) + "\n")
    stream = text_stream(tmp_path / "src")
    assert capture(spark, Lake.at(tmp_path / "lake"), stream).records == len(rows)


def test_later_lines_of_a_record_are_kept_as_malformed(spark: SparkSession, tmp_path: Path) -> None:
    plain = "".join(f"{number},plain\n" for number in range(3_000))
    lay_text(tmp_path / "src" / "a.csv", HEADER + plain + BROKEN)
    lake = Lake.at(tmp_path / "lake")
    done = capture(spark, lake, text_stream(tmp_path / "src"))
    assert (done.records, done.late) == (3_002, {"malformed": 1})
    assert pl.read_delta(lake.stream("text").late)["raw"].to_list() == ['two"']


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"mode": "SOMETIMES"}}, "mode is 'SOMETIMES'"),
        ({"options": {"timeZone": "Mars/Olympus"}}, "INVALID_TIMEZONE"),
        ({"schema": "id STRING, note TEXTISH"}, "TEXTISH"),
    ],
)
def test_unknown_options_and_columns_are_refused(
    spark: SparkSession, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    lay_text(tmp_path / "src" / "a.json", '{"id":"a","note":"x"}\n')
    stream = text_stream(tmp_path / "src", "json")
    stream = replace(stream, source=replace(stream.source, **changes))
    with pytest.raises(InvalidRequestError, match=message) as caught:
        capture(spark, Lake.at(tmp_path / "lake"), stream)
    assert caught.value.code == "CAP-SOURCE"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"id":"a","note":"x","note":"y"}', "note"),
        ('{"id":"a","n\\u006fte":"x","note":"y"}', "note"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"encoding": "UTF-8"}])
def test_a_key_that_comes_twice_is_refused(
    spark: SparkSession, tmp_path: Path, line: str, key: str, options: dict[str, str]
) -> None:
    stream = text_stream(tmp_path / "src", "json")
    stream = replace(stream, source=replace(stream.source, options=options))
    lay_text(tmp_path / "src" / "a.json", '{"id":"z","note":"fine"}\n' + line + "\n")
    lake = Lake.at(tmp_path / "lake")
    with pytest.raises(InvalidRequestError, match=f"key '{key}' twice in line 2") as caught:
        capture(spark, lake, stream)
    assert caught.value.code == "CAP-MALFORMED"
    assert not is_table(lake.stream("text").events)
