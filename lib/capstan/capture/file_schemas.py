"""The columns of a source's files, looked at before any of them is read: by name, never by place.

Structured Streaming takes the columns of one file for those of all, or reads values by their place
under the names of others. Here each file that is new is held against the stream's columns: columns
that it has besides go on tape, and everything else is refused with file and column.
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
from pyspark.errors import AnalysisException
from pyspark.sql.types import StringType, StructField, StructType

from capstan import error_translation
from capstan.capture.file_listing import Listing
from capstan.core.config import Stream
from capstan.errors import InvalidRequestError
from capstan.storage.lake import open_file, read_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE = 8
# Of types that may be read as a wider one, by what Parquet's reader of Spark takes them for.
_WIDER: Mapping[str, frozenset[str]] = {
    "tinyint": frozenset({"smallint", "int", "bigint", "double"}),
    "smallint": frozenset({"int", "bigint", "double"}),
    "int": frozenset({"bigint", "double"}),
    "float": frozenset({"double"}),
}
# Types of which Spark reads none as another one, but for wider ones.
_PLAIN = frozenset({*_WIDER, "bigint", "double", "string", "boolean"})
# Formats whose files tell their columns at their end, and how that is read.
_FOOTERS: Mapping[str, Callable[[pa.NativeFile], pa.Schema]] = {
    "parquet": parquet.read_schema,
    "orc": lambda opened: orc.ORCFile(opened).schema,
}
_WRITE_ANEW = (
    "a stream may only gain columns: write the file anew with those of the others, take it out of "
    "the source, or capture it as a stream of its own"
)
_NOT_TAKEN = (
    "write the file anew, with times in microseconds and names that differ in more than their case"
)
_BY_PLACE = (
    "CSV is read by the places of its columns: write the file anew in the order of the others; "
    "source.options.enforceSchema: true takes the places for right, whatever the first line says"
)


def columns_of(
    spark: SparkSession,
    stream: Stream,
    listing: Listing,
    fresh: Sequence[str],
    known: StructType | None,
) -> StructType | None:
    """The columns that a stream's rows have from now on; None where only Spark can tell.

    Args:
        spark: The session.
        stream: The declaration.
        listing: The files of its source.
        fresh: Those of them that are to be read, by their paths.
        known: The columns that are on tape; None before the first capture.

    Raises:
        InvalidRequestError: `CAP-SCHEMA`, naming the file, the column, and both types.
        SystemFailureError: `CAP-NO-ACCESS` for a file that may not be read.
    """
    schema = stream.source.schema
    declared = None if schema is None else StructType.fromDDL(schema)
    assert declared is None or isinstance(declared, StructType)
    files = _Files(stream, listing, sorted(fresh, key=lambda path: _age(listing, path)))
    if stream.source.format.lower() in _FOOTERS:
        return files.of_footers(spark, declared, known)
    if stream.source.format.lower() == "csv":
        return files.of_csv(declared, known)
    return None


def _age(listing: Listing, path: str) -> tuple[int, str]:
    return listing.files[path].modified, path


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of a stream that are to be read, the oldest first."""

    stream: Stream
    listing: Listing
    fresh: Sequence[str]

    def of_footers(
        self, spark: SparkSession, declared: StructType | None, known: StructType | None
    ) -> StructType | None:
        found = declared or known
        folders = dict.fromkeys(
            name for path in self.listing.files for name in self.listing.partitions(path)
        )
        for path, own in self._distinct(spark):
            there = {field.name.lower() for field in own.fields}
            texts = [StructField(name, StringType()) for name in folders]
            named = StructType([*own.fields, *(f for f in texts if f.name.lower() not in there)])
            if declared is not None:
                self._check_types(path, named, declared, declared=True)
            else:
                found = named if found is None else self._joined(path, named, found)
        return found

    def _distinct(self, spark: SparkSession) -> Iterator[tuple[str, StructType]]:
        """Of all files that have the same columns the first, and its columns."""
        first: dict[pa.Schema, str] = {}
        places = map(self.listing.place, self.fresh)
        kind = self.stream.source.format.lower()
        footer_of = partial(_footer, _FOOTERS[kind])
        with ThreadPoolExecutor(_AT_ONCE) as several:
            for path, footer in zip(self.fresh, several.map(footer_of, places), strict=True):
                if footer is not None:
                    first.setdefault(footer, path)
        # What Spark makes of them is not to be told from a footer alone.
        reader = spark.read.options(**self.stream.source.options).option("__globPaths__", "false")
        for footer, path in first.items():
            try:
                yield path, reader.format(kind).load(self.listing.place(path)).schema
            except AnalysisException as error:
                # Of all types of Parquet it is those of nanoseconds that Spark does not know.
                fine = next((each for each in footer if "[ns" in str(each.type)), None)
                said = (
                    error_translation.root_message(error)
                    if fine is None
                    else f"{fine.name} as {fine.type}"
                )
                what = f"has columns that Spark does not take: {said}"
                self._refuse(path, what, "" if fine is None else fine.name, _NOT_TAKEN)

    def _joined(self, path: str, own: StructType, known: StructType) -> StructType:
        """The columns of a stream with those of a file, each of which is told by its name."""
        self._check_types(path, own, known, declared=False)
        there, here = ({name.lower() for name in each.names} for each in (known, own))
        more = [field for field in own.fields if field.name.lower() not in there]
        lacking = [name for name in known.names if name.lower() not in here]
        # Of columns that came later, which are the last, a file of before has none.
        if lacking and (more or lacking != known.names[-len(lacking) :]):
            self._refuse(path, f"has no column {lacking[0]}", lacking[0])
        return StructType([*known.fields, *(StructField(f.name, f.dataType) for f in more)])

    def _check_types(
        self, path: str, own: StructType, wanted: StructType, *, declared: bool
    ) -> None:
        types = {field.name.lower(): field.dataType.simpleString() for field in wanted.fields}
        for field in own.fields:
            has = field.dataType.simpleString()
            wants = types.get(field.name.lower(), has)
            # Of other types Spark itself knows which it can read as what was declared.
            unknown = declared and not {has, wants} <= _PLAIN
            if has != wants and wants not in _WIDER.get(has, ()) and not unknown:
                what = f"has {field.name} as {has}, and the stream has it as {wants}"
                self._refuse(path, what, field.name)

    def of_csv(self, declared: StructType | None, known: StructType | None) -> StructType | None:
        """The same by the first line of each file, which Spark takes for that of all."""
        options = {name.lower(): value for name, value in self.stream.source.options.items()}
        if options.get("header", "").lower() != "true" or "enforceschema" in options:
            return declared
        wanted = list((declared or known or StructType()).names)
        for path in self.fresh:
            names = _header(self.listing.place(path), options)
            shared = min(len(names), len(wanted))
            for place in range(shared):
                if names[place].lower() != wanted[place].lower():
                    what = f"has {names[place]} where {wanted[place]} is in the others"
                    self._refuse(path, what, wanted[place], _BY_PLACE)
            if declared is None and len(names) > len(wanted):
                if wanted and options.get("inferschema", "").lower() == "true":
                    what = f"has a column {names[shared]} besides"
                    self._refuse(path, what, names[shared], "give source.schema in streams.yaml")
                wanted = names
        plain = all(wanted) and len(set(map(str.lower, wanted))) == len(wanted)
        if declared is not None or not plain or "inferschema" in options or not wanted:
            return declared
        return StructType([StructField(name, StringType()) for name in wanted])

    def _refuse(self, path: str, what: str, column: str, hint: str = _WRITE_ANEW) -> NoReturn:
        file = self.listing.inside(path)
        raise InvalidRequestError(
            "CAP-SCHEMA",
            f"stream {self.stream.name}: the file {file} {what}",
            hint,
            stream=self.stream.name,
            file=file,
            field=column,
        )


def _footer(read: Callable[[pa.NativeFile], pa.Schema], place: str) -> pa.Schema | None:
    """The columns of a file; None of one that is damaged, which stops the batch that reads it."""
    try:
        with open_file(place) as opened:
            return read(opened).remove_metadata()
    except (OSError, pa.ArrowException) as error:
        known = error_translation.translate(error)
        if known is not None and known.code != "CAP-DAMAGED":
            raise known from error
        return None


def _header(place: str, options: Mapping[str, str]) -> list[str]:
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    lines = read_head(place).decode(encoding, errors="replace").lstrip("\ufeff").splitlines()
    separator = options.get("sep", options.get("delimiter", ","))
    quote = options.get("quote") or '"'
    comment = options.get("comment") or "\n"
    lines = [line for line in lines if line.strip() and not line.startswith(comment)]
    return next(csv.reader(lines[:1], delimiter=separator, quotechar=quote), [])
