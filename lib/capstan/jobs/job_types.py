"""Types shared by the handlers of jobs and their main program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from capstan.api.context import Context
from capstan.errors import CapstanError

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, and the error to exit with if a check failed."""

    value: JsonObject
    refusal: CapstanError | None = None


Handler = Callable[[JsonObject, Context], JobResult]
