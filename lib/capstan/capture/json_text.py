"""JSON in lines and whole files, read as text, so that nothing behind the first value is lost.

Spark's parser ends at the end of the first value of a text. Whether anything but blanks and
comments follows is asked with the same parser: the text is put into an object and into an array,
with a member behind it. What follows a complete value there must begin with a comma or a closing
bracket, and then is none in the other one. So a text that stands in both is one value.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

from capstan.core.sql_names import quoted

LINE = "capstan's line"
"""The column of a text; no column of a tape can have this name."""

BLANKS = " \t\r\n"
ENCODINGS = ("UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32", "ISO-8859-1", "US-ASCII")
"""The encodings that Spark decodes in expressions."""

_SPOILT = "}"
"""Before a text, it makes the text one that does not parse."""

_OF_TEXTS = frozenset(
    {"mode", "columnnameofcorruptrecord", "multiline", "linesep", "encoding", "charset"}
)


def has_rest(text: Column, options: Mapping[str, str]) -> Column:
    """Whether anything but blanks and comments stands in a text beside one JSON value.

    Args:
        text: The text.
        options: The options of its parser.
    """
    known = {name: value for name, value in options.items() if name.lower() not in _OF_TEXTS}
    trimmed = F.trim(text, F.lit(BLANKS))
    size = F.length(trimmed)

    def ends_with_first(opening: str, closing: str) -> Column:
        """A value cannot end before the first closing bracket; if that is the last character."""
        return trimmed.startswith(opening) & (F.instr(trimmed, closing) == size)

    def stands(before: str, behind: str) -> Column:
        # The line break ends a comment.
        wrapped = F.concat(F.lit(before), text, F.lit(f"\n{behind}"))
        return F.from_json(wrapped, "end INT", known).getField("end").isNotNull()

    whole = F.when(ends_with_first("{", "}") | ends_with_first("[", "]"), True).otherwise(
        stands('{"a":', ',"end":0}') & stands('{"a":[', '],"end":0}')
    )
    return text.isNotNull() & (size > 0) & ~whole


def decoded(options: Mapping[str, str]) -> Column:
    """The text of `LINE` as read by Spark's source of text, which takes bytes as they are.

    Args:
        options: The options of the source, with names in lower case.
    """
    line = F.col(quoted(LINE))
    if (encoding := encoding_of(options)) != "UTF-8":
        return F.decode(line.cast("binary"), encoding)
    if not is_whole(options) or {"encoding", "charset"} & set(options):
        return line
    # Of a whole file, Spark finds the encoding by its first bytes; of lines, it is UTF-8.
    start = F.hex(F.substring(line.cast("binary"), 1, 2))
    utf16 = F.when(start.isin("FEFF", "FFFE"), F.decode(line.cast("binary"), "UTF-16"))
    big = utf16.when(start.startswith("00"), F.decode(line.cast("binary"), "UTF-16BE"))
    little = big.when(start.endswith("00"), F.decode(line.cast("binary"), "UTF-16LE"))
    return little.otherwise(F.regexp_replace(line, "^\ufeff", ""))


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

    Args:
        lines: Rows with `LINE` and others.
        fields: The fields of a record, among them `corrupt`.
        corrupt: The field for a text that cannot be parsed.
        options: The options of the source, with names in lower case.

    Returns:
        The rows with a struct of the fields in place of `LINE`; null for a text without a value.
    """
    known = {name: value for name, value in options.items() if name not in _OF_TEXTS}
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
        bad = value.getField(corrupt).isNotNull()
        elements = F.transform(
            value.getField("rows"), lambda e: record(e, F.when(bad | e.isNull(), text))
        )
        nothing = F.array(record(F.lit(None).cast(values), text))
        return F.coalesce(elements, nothing)

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
