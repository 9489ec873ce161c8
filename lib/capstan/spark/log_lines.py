"""Spark's own log lines: secret values are kept out of them, and the run is added to them."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

from capstan.errors.redaction import MASK, concealed, masked
from capstan.spark.own_session import set_all
from capstan.spark.session import is_ours
from capstan.telemetry.instrumentation import Facts, subscribe_call
from capstan.telemetry.structured_logging import LogContext

_OPTIONS = "spark.sql.redaction.options.regex"
# They log the commands to the JVM at the level DEBUG.
_GATEWAY_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")
# Converters that write an exception. Without one of them, a layout adds the exception at the end.
_EXCEPTIONS = re.compile(r"%[\d.-]*(?:ex|exception|throwable|[rx](?:Ex|Exception|Throwable))\b")

_NAMES = tuple(LogContext().to_json())
# The runs of the calls that go on in this process.
_present: dict[int, LogContext] = {}
_lock = threading.Lock()


@contextmanager
def masked_logs(spark: SparkSession, options: Collection[str]) -> Iterator[None]:
    """Mask the process's secret values in log lines of the driver, and options in plans.

    The lines stay masked afterwards. This covers log4j's text layouts, whatever configured them;
    Spark's structured logs are not covered.
    """
    _mask_lines(spark)
    for name in _GATEWAY_LOGGERS:
        logging.getLogger(name).addFilter(_MASK)
    before = str(spark.conf.get(_OPTIONS))
    names = "|".join(map(re.escape, sorted(options)))
    set_all(spark, {_OPTIONS: f"{before}|(?i)^({names})$"})
    try:
        yield
    finally:
        set_all(spark, {_OPTIONS: before})


def _mask_lines(spark: SparkSession) -> None:
    """Give each appender a layout that replaces the values in a whole line, exception included."""
    # Reading the configuration again would also do, but would reset levels that were set meanwhile.
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


@contextmanager
def marked(session: SparkSession) -> Iterator[None]:
    """Add the run to Spark's own log lines inside the `with` block.

    This covers the lines of its tasks, if the executors' log format includes Spark's MDC, and those
    of a driver that Capstan has started. While several calls overlap, the driver's lines name none.
    """
    context, call = LogContext(), object()
    spark = session.sparkContext
    before = {name: spark.getLocalProperty(f"mdc.{name}") for name in _NAMES}

    def mark(_point: str, facts: Facts) -> None:
        nonlocal context
        updated = context.after(facts)
        if updated != context:
            context = updated
            values = context.to_json().items()
            _mark_tasks(session, {n: "" if v is None else str(v) for n, v in values})
            _mark_driver(session, id(call), context)

    try:
        with subscribe_call(mark):
            yield
    finally:
        if context != LogContext():
            # The JVM may have died.
            with suppress(Exception):
                _mark_tasks(session, before)
                _mark_driver(session, id(call), None)


def _mark_tasks(session: SparkSession, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        # None removes a property, which pyspark's type does not say.
        session.sparkContext.setLocalProperty(f"mdc.{name}", value)  # type: ignore[arg-type]


def _mark_driver(session: SparkSession, call: int, context: LogContext | None) -> None:
    """Set the run of the lines of a driver, which its layout looks up for each line."""
    if not is_ours(session):
        return
    with _lock:
        _present.pop(call, None)
        if context is not None:
            _present[call] = context
        alone = next(iter(_present.values())) if len(_present) == 1 else LogContext()
        system: Any = session.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
        run = f"[{alone.run} {alone.attempt or ''}".rstrip() + "] " if alone.run else ""
        system.setProperty("capstan.run", run)
        system.setProperty("capstan.about", json.dumps(alone.to_json())[1:-1])
