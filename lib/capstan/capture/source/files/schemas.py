"""Schema checks of a source's files before they are read; columns match by name, not position.

Structured Streaming applies the columns of one file to all files, or reads values by position under
the names of others. Here each new file is compared with the stream's columns: additional columns go
on tape, every other difference is refused with file and column.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyarrow import orc, parquet
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StringType, StructField, StructType

from capstan.capture.source.files.listing import SourceListing
from capstan.core.config import Stream
from capstan.errors import InvalidRequestError, translation
from capstan.storage.lake import open_file, read_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE = 8
# Types that Spark's Parquet reader can widen, and to what.
_WIDER: Mapping[str, frozenset[str]] = {
    "tinyint": frozenset({"smallint", "int", "bigint", "double"}),
    "smallint": frozenset({"int", "bigint", "double"}),
    "int": frozenset({"bigint", "double"}),
    "float": frozenset({"double"}),
}
# Types that Spark never reads as another type, except a wider one.
_PLAIN = frozenset({*_WIDER, "bigint", "double", "string", "boolean"})
# Formats that store their columns in a footer, and how to read it.
_FOOTERS: Mapping[str, Callable[[pa.NativeFile], pa.Schema]] = {
    "parquet": parquet.read_schema,
    "orc": lambda opened: orc.ORCFile(opened).schema,
}
_REWRITE = (
    "a stream may only gain columns: rewrite the file with the columns of the others, remove it "
    "from the source, or capture it as a separate stream"
)
_UNSUPPORTED = (
    "rewrite the file with names that differ in more than their case, moments in microseconds, and "
    "times of a day as text"
)
_POSITIONAL = (
    "CSV is read by column position: rewrite the file in the order of the others; "
    "source.options.enforceSchema: true trusts the positions, whatever the first line says"
)


def columns_of(
    spark: SparkSession,
    stream: Stream,
    listing: SourceListing,
    fresh: Sequence[str],
    known: StructType | None,
) -> StructType | None:
    """The columns of a stream's rows from now on; None if only Spark can determine them.

    `known` are the columns on tape, None before the first capture.
    """
    declared = declared_columns(stream)
    oldest_first = sorted(fresh, key=lambda path: (listing.files[path].modified, path))
    files = _Files(stream, listing, oldest_first)
    if stream.source.format.lower() in _FOOTERS:
        return files.from_footers(spark, declared, known)
    if stream.source.format.lower() == "csv":
        return files.from_csv(declared, known)
    return None


def declared_columns(stream: Stream) -> StructType | None:
    """The columns of `source.schema`; None without it."""
    schema = stream.source.schema
    if schema is None:
        return None
    try:
        columns = StructType.fromDDL(schema)
    except ParseException as error:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: source.schema cannot be parsed: "
            f"{translation.root_message(error)}",
            "write columns as in SQL: id BIGINT, at TIMESTAMP, note STRING",
            stream=stream.name,
        ) from error
    assert isinstance(columns, StructType)
    return columns


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a stream to be read, oldest first."""

    stream: Stream
    listing: SourceListing
    fresh: Sequence[str]

    def from_footers(
        self, spark: SparkSession, declared: StructType | None, known: StructType | None
    ) -> StructType | None:
        columns = declared or known
        folders = self.listing.partition_columns()
        for path, footer in self._distinct(spark):
            names = {field.name.lower() for field in footer.fields}
            partitions = [StructField(n, StringType()) for n in folders if n.lower() not in names]
            file_columns = StructType([*footer.fields, *partitions])
            if declared is not None:
                self._check_types(path, file_columns, declared, declared=True)
            elif columns is None:
                columns = file_columns
            else:
                columns = self._merge(path, file_columns, columns)
        return columns

    def _distinct(self, spark: SparkSession) -> Iterator[tuple[str, StructType]]:
        """The first file of each distinct schema, with its columns."""
        first: dict[pa.Schema, str] = {}
        places = map(self.listing.place, self.fresh)
        kind = self.stream.source.format.lower()
        footer_of = partial(_footer, _FOOTERS[kind])
        with ThreadPoolExecutor(_AT_ONCE) as several:
            for path, footer in zip(self.fresh, several.map(footer_of, places), strict=True):
                if footer is not None:
                    first.setdefault(footer, path)
        # A footer alone does not determine the types that Spark reads.
        reader = spark.read.options(**self.stream.source.options).option("__globPaths__", "false")
        for footer, path in first.items():
            try:
                yield path, reader.format(kind).load(self.listing.place(path)).schema
            except AnalysisException as error:
                # Spark does not support Parquet's timestamps in nanoseconds.
                nanos = next((field for field in footer if "[ns" in str(field.type)), None)
                detail = (
                    translation.root_message(error)
                    if nanos is None
                    else f"{nanos.name} as {nanos.type}"
                )
                problem = f"has columns that Spark does not support: {detail}"
                self._refuse(path, problem, "" if nanos is None else nanos.name, _UNSUPPORTED)

    def _merge(self, path: str, file_columns: StructType, known: StructType) -> StructType:
        """The columns of a stream together with those of a file, matched by name."""
        self._check_types(path, file_columns, known, declared=False)
        known_names = {name.lower() for name in known.names}
        file_names = {name.lower() for name in file_columns.names}
        added = [field for field in file_columns.fields if field.name.lower() not in known_names]
        lacking = [name for name in known.names if name.lower() not in file_names]
        # An older file lacks only later columns, which come last.
        if lacking and (added or lacking != known.names[-len(lacking) :]):
            self._refuse(path, f"has no column {lacking[0]}", lacking[0])
        return StructType([*known.fields, *(StructField(f.name, f.dataType) for f in added)])

    def _check_types(
        self, path: str, file_columns: StructType, expected: StructType, *, declared: bool
    ) -> None:
        types = {field.name.lower(): field.dataType.simpleString() for field in expected.fields}
        for field in file_columns.fields:
            has = field.dataType.simpleString()
            wants = types.get(field.name.lower(), has)
            # Spark itself decides which other types it can read as the declared one.
            unknown = declared and not {has, wants} <= _PLAIN
            if has != wants and wants not in _WIDER.get(has, ()) and not unknown:
                problem = f"has {field.name} as {has}, but the stream has it as {wants}"
                self._refuse(path, problem, field.name)

    def from_csv(self, declared: StructType | None, known: StructType | None) -> StructType | None:
        """The columns from the first line of each file; Spark applies one file's line to all."""
        options = self.stream.source.options_by_name
        if options.get("header", "").lower() != "true" or "enforceschema" in options:
            return declared
        columns = list((declared or known or StructType()).names)
        for path in self.fresh:
            header = _header(self.listing.place(path), options)
            shared = min(len(header), len(columns))
            for i in range(shared):
                if header[i].lower() != columns[i].lower():
                    problem = f"has {header[i]} in the position of {columns[i]}"
                    self._refuse(path, problem, columns[i], _POSITIONAL)
            if declared is None and len(header) > len(columns):
                if columns and options.get("inferschema", "").lower() == "true":
                    problem = f"has an additional column {header[shared]}"
                    self._refuse(path, problem, header[shared], "set source.schema in streams.yaml")
                columns = header
        distinct = all(columns) and len(set(map(str.lower, columns))) == len(columns)
        if declared is not None or not distinct or "inferschema" in options or not columns:
            return declared
        return StructType([StructField(name, StringType()) for name in columns])

    def _refuse(self, path: str, problem: str, column: str, hint: str = _REWRITE) -> NoReturn:
        file = self.listing.relative(path)
        raise InvalidRequestError(
            "CAP-SCHEMA",
            f"stream {self.stream.name}: the file {file} {problem}",
            hint,
            stream=self.stream.name,
            file=file,
            field=column,
        )


def _footer(read: Callable[[pa.NativeFile], pa.Schema], place: str) -> pa.Schema | None:
    """The columns of a file; None for a damaged file, which fails the batch that reads it."""
    try:
        with open_file(place) as opened:
            return read(opened).remove_metadata()
    except (OSError, pa.ArrowException) as error:
        translated = translation.translate(error)
        if translated is not None and translated.code != "CAP-DAMAGED":
            raise translated from error
        return None


def _header(place: str, options: Mapping[str, str]) -> list[str]:
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    lines = read_head(place).decode(encoding, errors="replace").lstrip("\ufeff").splitlines()
    separator = options.get("sep", options.get("delimiter", ","))
    quote = options.get("quote") or '"'
    comment = options.get("comment") or "\n"
    lines = [line for line in lines if line.strip() and not line.startswith(comment)]
    return next(csv.reader(lines[:1], delimiter=separator, quotechar=quote), [])
