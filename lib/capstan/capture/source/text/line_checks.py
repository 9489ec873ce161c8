"""Checks of text files for input that Spark would silently misread.

Spark reads CSV line by line unless `multiLine` is set. A quoted field with a line break is then cut
off at the end of its line, and the rest becomes another record. Where files begin with quotes, all
their lines are looked at; elsewhere `raw_text` keeps the rest of such a record as malformed.

Of a key that a JSON record has twice, Spark takes the last value. What follows the first value of a
line is lost, unless the lines are read as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.source.files.listing import SourceListing, path_of
from capstan.capture.source.files.schemas import declared_columns
from capstan.capture.source.text import json_text
from capstan.core.config import Stream
from capstan.errors import InvalidRequestError
from capstan.storage.lake import read_head

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from capstan.core.config import Source
    from capstan.storage.tape.feed import Consumed

JSON_LINES = 10
"""The lines of each JSON file whose keys are compared: more would cost a second parse."""

_HEAD_BYTES = 1 << 14
_AT_ONCE = 8
_SHOWN = 80


@dataclass(slots=True)
class CheckedLines:
    """The files of a source of JSON lines whose lines were looked at before they are read.

    They are read `as_text` if Spark's source of JSON would lose something of a line; or without a
    look, if they are whole files, have a declared encoding, or cannot be listed.
    """

    source: Source
    listing: SourceListing | None
    as_text: bool
    files: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, source: Source, listing: SourceListing | None) -> CheckedLines | None:
        """Of a source of JSON, before any look; None for any other source."""
        if source.format.lower() != "json":
            return None
        options = source.options_by_name
        is_encoded = bool({"encoding", "charset"} & options.keys())
        return cls(source, listing, listing is None or json_text.is_whole(options) or is_encoded)

    def look_at(self, spark: SparkSession, heads: Mapping[str, bytes | None]) -> None:
        """Look at the first bytes of files, if known, and set `as_text` if one needs it."""
        if self.as_text or self.listing is None:
            return
        options = self.source.options_by_name
        doubtful = [p for p, head in heads.items() if "linesep" in options or _is_doubtful(head)]
        self.files.update(heads)
        if not doubtful:
            return
        lines = _as_lines(spark, options, [self.listing.place(path) for path in doubtful])
        line = F.col("value")
        # Each of them costs more than the one before, and leaves fewer lines.
        doubts = (
            ~json_text.is_flat_object(line),
            ~json_text.is_one_object(line),
            json_text.is_misread(line, options),
        )
        self.as_text = all(not lines.where(doubt).isEmpty() for doubt in doubts)

    def loses(self, spark: SparkSession, parts: Sequence[Consumed]) -> bool:
        """Whether a micro-batch that is not read as text would lose something of a file."""
        # Files arrive after the listing, and a micro-batch of a capture that was killed has others.
        if self.as_text:
            return False
        paths = (path_of(place) for part in parts for place in part.files or ())
        self.look_at(spark, dict.fromkeys(path for path in paths if path not in self.files))
        return self.as_text


def first_bytes(place: str) -> bytes:
    """The first bytes of a file; none of a damaged one: the batch that reads it fails."""
    try:
        return read_head(place, _HEAD_BYTES)
    except OSError:
        return b""


def _as_lines(spark: SparkSession, options: Mapping[str, str], places: list[str]) -> DataFrame:
    """The lines of files: column `value`. The names of `options` are in lower case."""
    reader = spark.read.options(recursiveFileLookup="true", __globPaths__="false")
    if "linesep" in options:
        reader = reader.option("lineSep", options["linesep"])
    return reader.text(places)


def _is_doubtful(head: bytes | None) -> bool:
    """Whether a file is longer than its first bytes, or these have a line that is no plain object.

    A job of Spark costs more than to look at a few short files here.
    """
    if head is None or len(head) >= _HEAD_BYTES:
        return True
    lines = re.split("\r\n|\n|\r", head.decode("utf-8", errors="replace"))
    return not all(json_text.is_plain_object(line) for line in lines if line.strip(" \t"))


def check_lines(
    spark: SparkSession,
    stream: Stream,
    listing: SourceListing,
    fresh: Sequence[str],
    lines: CheckedLines | None,
) -> None:
    """Check the text files that a capture is about to read; other formats pass."""
    options, is_csv = stream.source.options_by_name, stream.source.format.lower() == "csv"
    if json_text.is_whole(options) or (lines is None and not is_csv):
        return
    with ThreadPoolExecutor(_AT_ONCE) as several:
        read = several.map(first_bytes, map(listing.place, fresh))
        heads = dict(zip(fresh, read, strict=True))
    if lines is not None:
        _require_distinct_keys(stream, listing, heads)
        lines.look_at(spark, heads)
    elif (quote := options.get("quote", '"')) and any(quote.encode() in h for h in heads.values()):
        _require_closed_quotes(spark, stream, listing, fresh, options)


def has_odd_quotes(line: Column, options: Mapping[str, str]) -> Column:
    """Whether a line of CSV may end inside quotes; true for every line that does.

    The names of `options` are in lower case, here and below.
    """
    quote, escape = options.get("quote", '"'), options.get("escape", "\\")
    if not quote or json_text.is_whole(options):
        return F.lit(False)
    without = F.octet_length(F.replace(line, F.lit(quote), F.lit("")))
    odd = (F.octet_length(line) - without) % (2 * len(quote.encode())) != 0
    escaped = line.contains(escape + quote) if escape and escape != quote else F.lit(False)
    return line.contains(quote) & (odd | escaped)


def has_second_record(text: Column, options: Mapping[str, str]) -> Column:
    """Whether a text of CSV goes on behind the line break that ends its first record."""
    end, quote = options.get("linesep", "\n"), options.get("quote", '"')
    body = F.regexp_replace(text, r"[\x00-\x20]+$", "")
    one = F.lit(False)
    if quote:
        one = F.regexp_replace(text, r"[\r\n]+$", "").rlike(_whole_line(quote, options, end))
    return F.when(~body.contains(end), False).otherwise(~one)


def _require_closed_quotes(
    spark: SparkSession,
    stream: Stream,
    listing: SourceListing,
    fresh: Sequence[str],
    options: Mapping[str, str],
) -> None:
    quote = options.get("quote", '"')
    value = F.col("value")
    if (encoding := options.get("encoding", options.get("charset"))) is not None:
        value = F.decode(value.cast("binary"), encoding)
    lines = _as_lines(spark, options, [listing.place(path) for path in fresh])
    file = F.col("_metadata.file_path").alias("file")
    is_open = has_odd_quotes(value, options) & ~value.rlike(_whole_line(quote, options))
    if comment := options.get("comment"):
        is_open &= ~value.startswith(comment)
    # One job, whatever is found; the least file and line are the same on any number of cores.
    found = lines.where(is_open).select(F.struct(file, value.alias("line")).alias("open"))
    least = found.agg(F.min("open").alias("open")).collect()[0]["open"]
    if least is None:
        return
    name, line = listing.relative(path_of(least["file"])), repr(least["line"][:_SHOWN])
    raise InvalidRequestError(
        "CAP-MALFORMED",
        f"stream {stream.name}: the file {name} has a quoted field that does not end on its line, "
        f"but CSV is read line by line: {line}",
        "set source.options: multiLine: 'true' if the field goes on in the next line, or quote: '' "
        "if quotes are ordinary characters; then run again",
        stream=stream.name,
        file=name,
    )


def _whole_line(quote: str, options: Mapping[str, str], end: str | None = None) -> str:
    """A pattern, in Java's syntax, for lines in which every quoted field ends."""
    # `end` ends a record where it is not quoted; None if lines are already taken apart.
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    escape = options.get("escape", "\\")
    sep, q, e = map(_java_literal, (separator, quote, escape))
    special, pairs = (f"{q}{e}", f"{q}{q}|{e}.") if escape else (q, f"{q}{q}")
    stop = sep if end is None else f"{sep}|{_java_literal(end)}"
    rest = f"(?:(?!{stop}).)*+"
    quoted = f"{q}[^{special}]*+(?:(?:{pairs})[^{special}]*+)*+{q}{rest}"
    blanks = r"\s*+" if options.get("ignoreleadingwhitespace", "").lower() == "true" else ""
    field = f"{blanks}(?:{quoted}|(?!{q}){rest})"
    return f"(?s)^{field}(?:{sep}{field})*+$"


def _java_literal(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _require_distinct_keys(
    stream: Stream, listing: SourceListing, heads: Mapping[str, bytes]
) -> None:
    declared = declared_columns(stream)
    columns = None if declared is None else declared.names
    for path, head in heads.items():
        lines = head.decode("utf-8", errors="replace").split("\n")
        # The last line may be cut off.
        whole = lines[:-1] if len(head) >= _HEAD_BYTES else lines
        for number, line in enumerate(whole[:JSON_LINES], 1):
            key = repeated_key(line, columns)
            if key is None:
                continue
            name = listing.relative(path)
            raise InvalidRequestError(
                "CAP-MALFORMED",
                f"stream {stream.name}: the file {name} has the key {key!r} twice in line "
                f"{number}, and Spark would keep only the last value",
                "correct the file; or capture its lines as they are, with source.format: text, "
                "and parse them in a transform",
                stream=stream.name,
                file=name,
                line=line[:_SHOWN],
            )


def repeated_key(line: str, columns: Sequence[str] | None) -> str | None:
    """A key that an object in a line has twice, in any of the columns; None without one."""
    try:
        record = json.loads(line, object_pairs_hook=_Object)
        records = record if type(record) is list else [record]
        objects = (each for each in records if isinstance(each, _Object))
        return next((key for each in objects for key in _repeated(each, columns)), None)
    except (ValueError, RecursionError):
        return None  # Spark decides what does not parse.


class _Object(list[tuple[str, object]]):
    """The keys of an object of JSON, and their values."""


def _repeated(value: object, columns: Sequence[str] | None = None) -> Iterator[str]:
    """The keys that an object in a value has twice; of the value itself, those of `columns`."""
    if isinstance(value, _Object):
        known = [pair for pair in value if columns is None or pair[0] in columns]
        names = [name for name, _ in known]
        yield from (name for place, name in enumerate(names) if name in names[:place])
        value = [inner for _, inner in known]
    if isinstance(value, list):
        for each in value:
            yield from _repeated(each)
