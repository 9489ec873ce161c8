"""Turns of the threads of one process that write to the same stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.config import Stream
    from capstan.storage.lake import Lake

_locks: dict[tuple[str, str], threading.Lock] = {}
# The streams whose turn a call has, in whichever thread it goes on.
_of_call: ContextVar[frozenset[tuple[str, str]]] = ContextVar("capstan turns", default=frozenset())
_S = TypeVar("_S", "str", "Stream")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Writer = Callable[Concatenate["SparkSession", "Lake", _S, _P], _R]


def in_turn(write: _Writer[_S, _P, _R]) -> _Writer[_S, _P, _R]:
    """A function that writes to a stream, after other threads of this process that do.

    Spark would end the query of another thread with the same checkpoint, and leave its batch
    unfinished. Other processes are not kept waiting: of two, one is shut out.
    """

    @wraps(write)
    def waiting(
        spark: SparkSession, lake: Lake, stream: _S, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        place = lake.root, str(getattr(stream, "name", stream))
        if place in _of_call.get():
            return write(spark, lake, stream, *args, **kwargs)
        with _locks.setdefault(place, threading.Lock()):
            token = _of_call.set(_of_call.get() | {place})
            try:
                return write(spark, lake, stream, *args, **kwargs)
            finally:
                _of_call.reset(token)

    return waiting
