"""The log: one line for each named point and error, with the run it belongs to.

| variable | meaning |
| --- | --- |
| `CAPSTAN_LOG` | `json`: one JSON object per line; `plain`: human-readable lines |
| `CAPSTAN_LOG_FILE` | the file to append lines to, instead of standard error |

Each object has `at` (UTC), `level`, `event`, `run`, `attempt` and `stream`, null if unknown,
followed by the facts of the event by name. Spark's own lines in `json` also have `logger`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from capstan.errors import CapstanError, InvalidRequestError
from capstan.errors.redaction import masked
from capstan.telemetry.instrumentation import Facts, subscribe

VARIABLE = "CAPSTAN_LOG"
FILE = "CAPSTAN_LOG_FILE"

Write = Callable[[str], object]


class LogFormat(StrEnum):
    """The format of a log line."""

    JSON = "json"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class LogContext:
    """The run, attempt and stream that a line belongs to; None if unknown."""

    run: str | None = None
    attempt: int | None = None
    stream: str | None = None

    def after(self, facts: Facts) -> LogContext:
        """The context updated with these facts; a change of run resets the attempt."""
        context = self
        if facts.get("run") not in (None, self.run):
            context = replace(context, run=str(facts["run"]), attempt=None)
        if isinstance(attempt := facts.get("attempt"), int):
            context = replace(context, attempt=attempt)
        if facts.get("stream") is not None:
            context = replace(context, stream=str(facts["stream"]))
        return context

    def to_json(self) -> dict[str, object]:
        """Run, attempt and stream by name."""
        return {"run": self.run, "attempt": self.attempt, "stream": self.stream}


@dataclass(slots=True)
class Log:
    """Writes log lines with their context."""

    format: LogFormat
    write: Write
    context: LogContext = field(default_factory=LogContext)

    def point(self, name: str, facts: Facts) -> None:
        """Log a named point; a listener for `capstan.telemetry.instrumentation`."""
        self.context = self.context.after(facts)
        self._write_line("info", name, facts)

    def failed(self, error: CapstanError) -> None:
        """Log an error."""
        self._write_line("error", error.code, error.to_json())

    def _write_line(self, level: str, event: str, facts: Facts) -> None:
        text = format_line(self.format, datetime.now(UTC), level, event, self.context, facts)
        # A failure to write the log never stops a run.
        with suppress(OSError, ValueError):
            self.write(masked(text))


def format_line(
    form: LogFormat, at: datetime, level: str, event: str, context: LogContext, facts: Facts
) -> str:
    """One log line with its newline."""
    belonging = context.to_json()
    facts = {name: value for name, value in facts.items() if name not in belonging}
    if form is LogFormat.JSON:
        head = {"at": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "level": level, "event": event}
        # A fact must not hide a field that every line has.
        facts = {f"{name}_" if name in head else name: value for name, value in facts.items()}
        return json.dumps({**head, **belonging, **facts}, default=str) + "\n"
    known = {name: value for name, value in belonging.items() if value is not None}
    pairs = " ".join(f"{name}={_plain(value)}" for name, value in {**known, **facts}.items())
    return f"{at:%H:%M:%S} {level.upper()} {event} {pairs}".rstrip() + "\n"


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if not text or any(c.isspace() for c in text) else text


def read_format() -> LogFormat | None:
    """The log format from `CAPSTAN_LOG`; None if it is not set."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value and value not in tuple(LogFormat):
        raise InvalidRequestError(
            "CAP-SETTING",
            f"{VARIABLE} is {value!r}, which is not a log format",
            "set it to json or plain",
            field=VARIABLE,
        )
    return LogFormat(value) if value else None


def owns_standard_error() -> bool:
    """Whether standard error is reserved for the JSON log."""
    return read_format() is LogFormat.JSON and not os.environ.get(FILE)


@contextmanager
def logging(default: LogFormat | None = None) -> Iterator[Log | None]:
    """Log every point reached inside the `with` block; None without `CAPSTAN_LOG` or a default."""
    form = read_format() or default
    if form is None:
        yield None
        return
    with _open_output(os.environ.get(FILE)) as write:
        log = Log(form, write)
        with subscribe(log.point):
            yield log


@contextmanager
def _open_output(path: str | None) -> Iterator[Write]:
    if not path:
        yield _to_standard_error
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InvalidRequestError(
            "CAP-SETTING",
            f"{FILE} is {path!r}, which cannot be written: {error.strerror or error}",
            "give a file in an existing folder",
            field=FILE,
        ) from error
    try:
        # One write per line, because several processes may append to one file.
        yield lambda text: os.write(file, text.encode())
    finally:
        os.close(file)


def _to_standard_error(text: str) -> None:
    # Looked up on every call, because a test or an embedding program may replace it.
    sys.stderr.write(text)
    sys.stderr.flush()
