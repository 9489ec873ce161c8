"""Transport of errors from tasks to the driver, with code, hint and fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capstan.errors import CapstanError
from capstan.pipeline.graph import errors
from capstan.pipeline.spark.wire_format import plain
from capstan.pipeline.state import errors as state_errors

_MARK = "capstan-error "
_PATTERN = re.compile(re.escape(_MARK) + r"(\{.*\})")


class TaskFailed(Exception):
    """Raised in a task instead of a Capstan error: Spark transmits only its text."""


@contextmanager
def in_task() -> Iterator[None]:
    """Transmit Capstan errors raised inside to the driver."""
    try:
        yield
    except CapstanError as error:
        raise TaskFailed(sent(error)) from error


def sent(error: CapstanError) -> str:
    """The text of an error in a task, from which `on_driver` makes the error."""
    value = {"class": type(error).__name__, "told": error.summary(), "fields": error.fields}
    return _MARK + json.dumps(value, default=plain)


@contextmanager
def on_driver() -> Iterator[None]:
    """Raise the error with which a task of a job inside has failed."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        match = _PATTERN.search(str(failure))
        if match is None:
            raise
        raise _rebuild(json.loads(match[1])) from failure


def _rebuild(value: dict[str, object]) -> CapstanError:
    summary, fields = value["told"], value["fields"]
    assert isinstance(summary, dict)
    assert isinstance(fields, dict)
    classes = vars(errors) | vars(state_errors)
    kind = classes.get(str(value["class"]), errors.OperatorFailed)
    assert issubclass(kind, CapstanError)
    error: CapstanError = kind(summary["error"], summary["message"], summary["hint"], **fields)
    return error
