"""Keeps secret values out of Spark's own log lines and plans."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from capstan.errors.redaction import MASK, concealed, masked
from capstan.spark.own_session import set_all

_OPTIONS = "spark.sql.redaction.options.regex"
# They log the commands to the JVM at the level DEBUG.
_GATEWAY_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")
# Converters that write an exception. Without one of them, a layout adds the exception at the end.
_EXCEPTIONS = re.compile(r"%[\d.-]*(?:ex|exception|throwable|[rx](?:Ex|Exception|Throwable))\b")


@contextmanager
def masked_logs(spark: SparkSession, options: Collection[str]) -> Iterator[None]:
    """Mask the process's secret values in log lines of the driver, and options in plans.

    The lines stay masked afterwards. This covers log4j's text layouts, whatever configured them;
    Spark's structured logs are not covered.
    """
    _mask_lines(spark)
    _mask_gateway()
    before = str(spark.conf.get(_OPTIONS))
    names = "|".join(map(re.escape, sorted(options)))
    set_all(spark, {_OPTIONS: f"{before}|(?i)^({names})$"})
    try:
        yield
    finally:
        set_all(spark, {_OPTIONS: before})


def _mask_lines(spark: SparkSession) -> None:
    """Give each appender a layout that replaces the values in a whole line, exception included.

    Reading the configuration again would also do, but would reset levels that were set meanwhile.
    """
    jvm: Any = spark.sparkContext._jvm
    values = "|".join(map(re.escape, concealed()))
    if not values:
        return
    log4j = jvm.org.apache.logging.log4j
    layouts = log4j.core.layout.PatternLayout
    replacement = log4j.core.pattern.RegexReplacement.createRegexReplacement(
        jvm.java.util.regex.Pattern.compile(values), MASK
    )
    configuration = log4j.LogManager.getContext(False).getConfiguration()
    field = jvm.java.lang.Class.forName(
        "org.apache.logging.log4j.core.appender.AbstractAppender"
    ).getDeclaredField("layout")
    field.setAccessible(True)
    for appender in configuration.getAppenders().values():
        layout = appender.getLayout()
        if layout.getClass().getName() != "org.apache.logging.log4j.core.layout.PatternLayout":
            continue
        pattern = layout.getConversionPattern()
        builder = layouts.newBuilder().withPattern(pattern).withConfiguration(configuration)
        builder = builder.withCharset(layout.getCharset()).withRegexReplacement(replacement)
        shown = _EXCEPTIONS.search(pattern) is not None
        field.set(appender, builder.withAlwaysWriteExceptions(not shown).build())


class _Mask(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked(record.getMessage()), ()
        return True


_MASK = _Mask()


def _mask_gateway() -> None:
    for name in _GATEWAY_LOGGERS:
        logging.getLogger(name).addFilter(_MASK)
