"""JSON of which nothing behind the first value is lost, in lines, whole files and other texts.

Spark's parser ends at the end of the first value of a text, and makes no row of an empty array. So
lines are looked at before they are read: where each is one object, which is nearly always, Spark's
source of JSON reads them; else they are read as text and parsed here.

Whether anything but blanks and comments follows a value is asked with parsers of the same kind: the
text is put into an object, with a member behind it. What follows a complete value there must begin
with a comma or the closing bracket, and then shows as another member, or hides the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

from capstan.core.sql_names import quoted

LINE = "capstan's line"
"""The column of a text; no column of a tape can have this name."""

BLANKS = " \t\r\n"
_MARK = "\ufeff"
_LONGEST = 2**31 - 1
ENCODINGS = ("UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32", "ISO-8859-1", "US-ASCII")
"""The encodings that Spark decodes in expressions."""

_END = "capstan's end"
_SPOILT = "}"
"""Before a text, it makes the text one that does not parse."""

_OF_TEXTS = frozenset(
    {"mode", "columnnameofcorruptrecord", "multiline", "linesep", "encoding", "charset"}
)


def has_rest(text: Column, options: Mapping[str, str]) -> Column:
    """Whether anything but blanks and comments stands in a text beside one JSON value."""
    known = _of_values(options)
    trimmed = F.trim(text, F.lit(BLANKS))
    is_short_array = trimmed.startswith("[") & (F.instr(trimmed, "]") == F.length(trimmed))

    def stands(before: str, behind: str) -> Column:
        # The line break ends a comment.
        wrapped = F.concat(F.lit(before), text, F.lit(f"\n{behind}"))
        return F.from_json(wrapped, "end INT", known).getField("end").isNotNull()

    proven = F.when(is_one_object(text) | is_short_array, True)
    # Other options of the parser, and arrays; such a text must stand in an array, too.
    whole = proven.otherwise(stands('{"a":', ',"end":0}') & stands('{"a":[', '],"end":0}'))
    return text.isNotNull() & (F.length(trimmed) > 0) & ~whole


def json_texts(text: Column, options: Mapping[str, str]) -> Column:
    """The members of a text that is one object, as MAP<STRING, STRING>; null for any other."""
    return F.from_json(text, "MAP<STRING, STRING>", _of_values(options))


def is_flat_object(text: Column) -> Column:
    """Whether a text is one object with no other inside, and nothing beside it; perhaps null."""
    # A value cannot end before the first closing bracket. No text is true of which something is
    # lost.
    return text.startswith("{") & (F.instr(text, "}") == F.length(text))


def is_one_object(text: Column) -> Column:
    """Whether a text is one object of strict JSON, with nothing but blanks beside it; never null.

    Those with others inside are read once, without converting any value.
    """
    trimmed = F.trim(text, F.lit(BLANKS))
    members = F.json_object_keys(F.concat(F.lit('{"a":'), text, F.lit(f'\n,"{_END}":0}}')))
    by_members = ~text.contains(_END) & (members == F.array(F.lit("a"), F.lit(_END)))
    one = is_flat_object(trimmed) | (trimmed.startswith("{") & by_members)
    return F.coalesce(one, F.lit(False))


def is_misread(line: Column, options: Mapping[str, str]) -> Column:
    """Whether Spark's source of JSON would lose something of a line, or make no row of it.

    The names of `options` are in lower case, here and below.
    """
    known = _of_values(options)
    text = _unmarked(line)
    unparsed = F.from_json(text, "a INT, c STRING", {**known, "columnNameOfCorruptRecord": "c"})
    trimmed = F.trim(text, F.lit(BLANKS))
    # What does not parse at all is not lost. Arrays, null and comments are none of an object's.
    other = trimmed.rlike(r"^(\[|null|/|#|\ufeff)") | unparsed.getField("c").isNull()
    return F.when(is_one_object(text) | (F.length(trimmed) == 0), False).otherwise(other)


def _of_values(options: Mapping[str, str]) -> dict[str, str]:
    """The options that say how a value is read, without those of files and lines."""
    return {name: value for name, value in options.items() if name.lower() not in _OF_TEXTS}


def _unmarked(line: Column) -> Column:
    """A text without the byte order mark at its begin."""
    return F.when(line.startswith(_MARK), F.substring(line, 2, _LONGEST)).otherwise(line)


def is_plain_object(line: str) -> bool:
    """The same as `is_one_object` for a line that Spark has not read."""
    try:
        return isinstance(json.loads(line.strip(BLANKS).removeprefix(_MARK)), dict)
    except (ValueError, RecursionError):
        return False


def decoded(options: Mapping[str, str]) -> Column:
    """The text of `LINE` as read by Spark's source of text, which takes bytes as they are."""
    line = F.col(quoted(LINE))
    if (encoding := encoding_of(options)) != "UTF-8":
        return F.decode(line.cast("binary"), encoding)
    unmarked = _unmarked(line)
    if not is_whole(options) or {"encoding", "charset"} & set(options):
        return unmarked
    # Of a whole file, Spark finds the encoding by its first bytes; of lines, it is UTF-8.
    start = F.hex(F.substring(line.cast("binary"), 1, 2))
    utf16 = F.when(start.isin("FEFF", "FFFE"), F.decode(line.cast("binary"), "UTF-16"))
    big = utf16.when(start.startswith("00"), F.decode(line.cast("binary"), "UTF-16BE"))
    little = big.when(start.endswith("00"), F.decode(line.cast("binary"), "UTF-16LE"))
    return little.otherwise(unmarked)


def encoding_of(options: Mapping[str, str]) -> str:
    """The encoding of a source, by its options, with names in lower case."""
    return options.get("encoding", options.get("charset", "UTF-8")).upper()


def is_whole(options: Mapping[str, str]) -> bool:
    """Whether a file is one text, by the options of its source, with names in lower case."""
    return options.get("multiline", "").lower() == "true"


def parsed(
    lines: DataFrame, fields: StructType, corrupt: str, options: Mapping[str, str]
) -> DataFrame:
    """The records of texts; a text with an array has one for each element.

    A struct of `fields` takes the place of `LINE`; it is null for a text without a value. The field
    `corrupt` among them is for a text that cannot be parsed.
    """
    known = _of_values(options)
    if options.get("mode", "").upper() == "FAILFAST":
        known["mode"] = "FAILFAST"
    known["columnNameOfCorruptRecord"] = corrupt
    others = [F.col(quoted(name)) for name in lines.columns if name != LINE]
    # A line that is blank is none; a text with anything else makes a row, or is said to make none.
    texts = lines.select(decoded(options).alias(LINE), *others).where(
        F.length(F.trim(F.col(quoted(LINE)), F.lit(BLANKS))) > 0
    )
    text = F.col(quoted(LINE))
    spoilt = F.when(has_rest(text, known), F.concat(F.lit(_SPOILT), text)).otherwise(text)
    values = StructType([field for field in fields.fields if field.name != corrupt])

    def record(of: Column, unparsed: Column) -> Column:
        return F.struct(
            *(
                (unparsed if name == corrupt else of.getField(name)).alias(name)
                for name in fields.names
            )
        )

    def one(value: Column) -> Column:
        unparsed = F.when(value.getField(corrupt).isNotNull(), text)
        return F.when(value.isNotNull(), record(value, unparsed))

    def several(value: Column) -> Column:
        elements = F.transform(
            value.getField("rows"), lambda e: record(e, F.when(e.isNull(), text))
        )
        nothing = F.array(record(F.lit(None).cast(values), text))
        return F.when(value.getField(corrupt).isNull() & elements.isNotNull(), elements).otherwise(
            nothing
        )

    wrapped = F.concat(F.lit('{"rows":'), spoilt, F.lit("\n}"))
    schema = StructType().add("rows", ArrayType(values)).add(corrupt, StringType())
    array = F.from_json(wrapped, schema, known)
    single = F.from_json(spoilt, fields, known)
    is_array = F.ltrim(text, F.lit(BLANKS)).startswith("[")
    # A value that is used several times is bound by a function, so that it is computed once.
    rows = F.when(is_array, F.flatten(F.transform(F.array(array), several))).otherwise(
        F.transform(F.array(single), one)
    )
    return texts.select(F.explode_outer(rows).alias(LINE), *others)
