"""Sources that have no format: a table of a catalog, or a function of the user's own."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from capstan.capture.source.files.listing import FILES
from capstan.core.config.fields import imported
from capstan.errors import CapstanError, InvalidRequestError, translation
from capstan.spark.own_session import active, is_same, moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from capstan.core.config import Stream


_SESSION = "spark"
"""The name of the parameter that is given the session."""


def call_source(spark: SparkSession, stream: Stream) -> DataFrame:
    """The streaming frame that a source's function returns."""
    # Its arguments are the source's options, and the session for a parameter `spark`. The session
    # is the active one too, so that the frame is the same wherever the capture runs.
    with active(spark):
        frame = _called(spark, stream)
    if not is_same(frame.sparkSession, spark):
        raise _refused(
            stream,
            "returns a DataFrame of a session with other settings",
            "declare a parameter named spark, which gets the session, and read with it",
        )
    frame = moved(frame, spark)
    _require_runnable(stream, frame)
    return frame


def _called(spark: SparkSession, stream: Stream) -> DataFrame:
    function = _function(stream)
    arguments: dict[str, object] = dict(stream.source.options)
    try:
        signature = inspect.signature(function)
        if _SESSION in signature.parameters:
            arguments.setdefault(_SESSION, spark)
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise _refused(
            stream,
            f"does not take the declared options: {error}",
            "declare its arguments in source.options; a parameter named spark gets the session",
        ) from error
    try:
        frame = function(**arguments)
    except CapstanError:
        raise
    except Exception as error:
        raise translation.translate(error) or _refused(
            stream,
            f"fails: {type(error).__name__}: {translation.root_message(error)}",
            "correct it, or source.options; then run again",
        ) from error
    if isinstance(frame, DataFrame) and frame.isStreaming:
        return frame
    what = "a DataFrame that is not streaming" if isinstance(frame, DataFrame) else _named(frame)
    raise _refused(
        stream, f"returns {what}", "return a streaming DataFrame, as spark.readStream makes it"
    )


def _require_runnable(stream: Stream, frame: DataFrame) -> None:
    """Check that Spark can run a streaming query of a frame, before a tape is made for it."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), append)
    except AnalysisException as error:
        raise _refused(
            stream,
            f"returns rows that Spark cannot append: {translation.root_message(error)}",
            "return rows that do not change later: aggregates need a watermark, sorting and limits "
            "belong into a transform",
        ) from error


def _function(stream: Stream) -> Callable[..., object]:
    assert stream.source.function is not None
    try:
        function = imported(stream.source.function)
    except Exception as error:
        # A module is code of the user's, which can raise anything.
        raise _refused(
            stream,
            f"cannot be imported: {type(error).__name__}: {error}",
            "put its module beside streams.yaml, or install it; then run again",
        ) from error
    if not callable(function):
        raise _refused(stream, f"is {_named(function)}", "name a function of the module")
    return function


def _named(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _refused(stream: Stream, problem: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-SOURCE",
        f"stream {stream.name}: source.function {stream.source.function} {problem}",
        hint,
        stream=stream.name,
        function=stream.source.function,
    )


def read_table(spark: SparkSession, stream: Stream) -> DataFrame:
    """The rows of a source's table, as a streaming frame."""
    table = stream.source.table
    assert table is not None
    details = _details(spark, table)
    provider = details.get("Provider", "")
    if provider.lower() in FILES:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: table {table} is a folder of files in the format {provider}",
            f"declare its folder, so that each file is counted: format: {provider.lower()}, path: "
            f"{details.get('Location', 'its location')}",
            stream=stream.name,
        )
    frame = spark.readStream.options(**stream.source.options).table(table)
    if not frame.isStreaming:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: {table} is a view, whose rows cannot be read as a stream",
            "name a table; source.select and source.where can do what the view does",
            stream=stream.name,
        )
    return frame


def _details(spark: SparkSession, table: str) -> dict[str, str]:
    """What the catalog tells about a table; nothing for one that it does not describe."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    except PySparkException:
        return {}
    return {str(row["col_name"]): str(row["data_type"]) for row in rows}
