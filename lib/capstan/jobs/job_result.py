"""The result of a job, and where it is left: the file of `--result`, or the attempt in the lake."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from capstan.api.context import Context
from capstan.core.json_object import Json
from capstan.errors import CapstanError
from capstan.spark.project_home import replacing
from capstan.storage.job_attempts import SIGNS_EVERY, JobAttempt


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, and the error to exit with if a check failed."""

    value: Json
    refusal: CapstanError | None = None


Handler = Callable[[Json, Context], JobResult]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Where one start of a job leaves its result."""

    verb: str  # The job, such as `replay`.
    file: Path | None = None  # The file of `--result`.
    attempt: JobAttempt | None = None  # The attempt of `--attempt`.
    request: Json | None = None  # None before it is read.

    def begin(self) -> None:
        """Delete what an earlier start left, which must not pass for this one's, and sign."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        if self.attempt is not None:
            self.attempt.begin()
            _sign(self.attempt, self.request or {})

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Go on to give signs of life in the lake inside the `with` block, if it has an attempt."""
        if self.attempt is None:
            yield
            return
        ended = threading.Event()
        signed = (self.attempt, dict(self.request or {}), ended)
        thread = threading.Thread(target=_sign_on, args=signed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def done(self, result: JobResult) -> None:
        """Write the result of a job, with the error if a check failed."""
        refusal = result.refusal
        summary = None if refusal is None else refusal.summary()
        if self.file is not None:
            _write(self.file, {**result.value, **(summary or {})})
        if self.attempt is not None:
            code = 0 if refusal is None else refusal.exit_code
            self.attempt.end(self.verb, code, result.value, summary, self.request)

    def failed(self, error: CapstanError) -> None:
        """Write the error that has ended a job; what cannot be written is only printed."""
        value = error.to_json()
        if self.file is not None:
            try:
                _write(self.file, value)
            except OSError as unwritten:
                _print(self.file, unwritten)
        if self.attempt is not None:
            try:
                self.attempt.end(self.verb, error.exit_code, None, value, self.request)
            except (OSError, CapstanError) as unwritten:
                _print(self.attempt.result_path, unwritten)


def _sign_on(attempt: JobAttempt, request: Json, ended: threading.Event) -> None:
    while not ended.wait(SIGNS_EVERY):
        _sign(attempt, request)


def _sign(attempt: JobAttempt, request: Json) -> None:
    # Without a store there is no sign; the job finds out by itself whether it can go on.
    with suppress(OSError, CapstanError):
        attempt.sign(request)


def _write(path: Path, value: Json) -> None:
    """Write a result file atomically."""
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(value, default=str) + "\n", encoding="utf-8")


def _print(path: Path | str, error: Exception) -> None:
    print(f"{path} cannot be written: {error}", file=sys.stderr, flush=True)
