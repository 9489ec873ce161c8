"""Files of JSON that Spark's source of JSON reads without losing anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.source.files.listing import SourceListing, path_of
from capstan.capture.source.text import json_text
from capstan.storage.lake import read_head

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.core.config import Source
    from capstan.storage.tape.feed import Consumed

HEAD_BYTES = 1 << 14


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
        """Look at the first `HEAD_BYTES` of files, if known, and set `as_text` if one needs it."""
        if self.as_text or self.listing is None:
            return
        options = self.source.options_by_name
        doubtful = [p for p, head in heads.items() if "linesep" in options or _is_doubtful(head)]
        self.files.update(heads)
        if not doubtful:
            return
        lines = as_lines(spark, options, [self.listing.place(path) for path in doubtful])
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
        return read_head(place, HEAD_BYTES)
    except OSError:
        return b""


def as_lines(spark: SparkSession, options: Mapping[str, str], places: list[str]) -> DataFrame:
    """The lines of files: column `value`. The names of `options` are in lower case."""
    reader = spark.read.options(recursiveFileLookup="true", __globPaths__="false")
    if "linesep" in options:
        reader = reader.option("lineSep", options["linesep"])
    return reader.text(places)


def _is_doubtful(head: bytes | None) -> bool:
    """Whether a file is longer than its first bytes, or these have a line that is no plain object.

    A job of Spark costs more than to look at a few short files here.
    """
    if head is None or len(head) >= HEAD_BYTES:
        return True
    lines = re.split("\r\n|\n|\r", head.decode("utf-8", errors="replace"))
    return not all(json_text.is_plain_object(line) for line in lines if line.strip(" \t"))
