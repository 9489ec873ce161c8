"""The secrets of a source: resolved while it is read, and kept out of errors and logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from capstan.core.config.loading.secret_references import references, resolve
from capstan.errors import redaction
from capstan.errors.translation import to_capstan_error
from capstan.spark.log_lines import masked_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.config import Stream

Result = TypeVar("Result")


def with_secrets(spark: SparkSession, stream: Stream, work: Callable[[Stream], Result]) -> Result:
    """Do some work on a stream, with the values of its references.

    An error that would show a value is raised without it, and without the errors that led to it.
    """
    resolved = resolve(stream)
    if resolved is stream:
        return work(stream)
    options = {reference.key for reference in references(stream.source.options)}
    try:
        with masked_logs(spark, options):
            return work(resolved)
    except Exception as error:
        if not redaction.reveals(error):
            raise
        failure = to_capstan_error(error)
    # Outside of the handler, which would attach the original error.
    failure.__cause__ = failure.__context__ = None
    raise failure
