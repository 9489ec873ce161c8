"""How the error of an operator comes from a task to the driver: whole, not as a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from capstan.errors import CapstanError
from capstan.pipeline.graph import errors
from capstan.pipeline.spark.wire_format import plain
from capstan.pipeline.state import errors as state_errors

_MARK = "capstan-error "
_FOUND = re.compile(re.escape(_MARK) + r"(\{.*\})")


class TaskFailed(Exception):
    """What a task raises in place of an error of ours: Spark hands on nothing but its text."""


@contextmanager
def in_task() -> Iterator[None]:
    """Let errors of ours that are raised inside reach the driver."""
    try:
        yield
    except CapstanError as error:
        told = {"class": type(error).__name__, "told": error.summary(), "fields": error.fields}
        raise TaskFailed(_MARK + json.dumps(told, default=plain)) from error


@contextmanager
def on_driver() -> Iterator[None]:
    """Raise the error that a task of a job inside has failed with.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        CapstanError: Whatever else of ours a task raised.
    """
    try:
        yield
    except PySparkException as failure:
        found = _FOUND.search(str(failure))
        if found is None:
            raise
        raise _again(json.loads(found[1])) from failure


def _again(said: dict[str, object]) -> CapstanError:
    told, fields = said["told"], said["fields"]
    assert isinstance(told, dict)
    assert isinstance(fields, dict)
    known = vars(errors) | vars(state_errors)
    kind = known.get(str(said["class"]), errors.OperatorFailed)
    assert issubclass(kind, CapstanError)
    again: CapstanError = kind(told["error"], told["message"], told["hint"], **fields)
    return again
