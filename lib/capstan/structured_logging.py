"""The log: a line for each point of the work that is reached, with the run that it belongs to.

| variable | meaning |
| --- | --- |
| `CAPSTAN_LOG` | `json`: one JSON object a line; `plain`: a line for people |
| `CAPSTAN_LOG_FILE` | the file that lines are appended to, in place of standard error |

Each object has `at` (UTC), `level`, `event`, `run`, `attempt` and `stream`, null where they are not
known, and then the facts of the event by name. Spark's own lines in `json` have `logger` as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from capstan.errors import CapstanError, InvalidRequestError
from capstan.instrumentation import subscribe

VARIABLE = "CAPSTAN_LOG"
FILE = "CAPSTAN_LOG_FILE"

Write = Callable[[str], object]


class LogFormat(StrEnum):
    """How lines are written."""

    JSON = "json"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class LogContext:
    """What a line belongs to; what is not known is None.

    Attributes:
        run: The run.
        attempt: Which attempt of it.
        stream: The stream.
    """

    run: str | None = None
    attempt: int | None = None
    stream: str | None = None

    def after(self, facts: Mapping[str, object]) -> LogContext:
        """The same, once these facts are known: another run has its own attempts."""
        known = self
        if facts.get("run") not in (None, self.run):
            known = replace(known, run=str(facts["run"]), attempt=None)
        if isinstance(facts.get("attempt"), int):
            known = replace(known, attempt=int(str(facts["attempt"])))
        if facts.get("stream") is not None:
            known = replace(known, stream=str(facts["stream"]))
        return known

    def to_json(self) -> dict[str, object]:
        """The three by name."""
        return {"run": self.run, "attempt": self.attempt, "stream": self.stream}


@dataclass(slots=True)
class Log:
    """Writes lines, and knows what they belong to.

    Attributes:
        form: How they are written.
        write: Takes a line, with its end.
        about: What the next line belongs to.
    """

    form: LogFormat
    write: Write
    about: LogContext = field(default_factory=LogContext)

    def reached(self, point: str, facts: Mapping[str, object]) -> None:
        """Log a point of the work; a listener of `capstan.instrumentation`."""
        self.about = self.about.after(facts)
        self._say("info", point, facts)

    def failed(self, error: CapstanError) -> None:
        """Log an error."""
        self._say("error", error.code, error.to_json())

    def _say(self, level: str, event: str, facts: Mapping[str, object]) -> None:
        try:
            self.write(line(self.form, datetime.now(UTC), level, event, self.about, facts))
        except (OSError, ValueError):
            # A log that cannot be written stops no work.
            return


def line(
    form: LogFormat,
    at: datetime,
    level: str,
    event: str,
    about: LogContext,
    facts: Mapping[str, object],
) -> str:
    """One line of the log, with its end."""
    more = {name: value for name, value in facts.items() if name not in about.to_json()}
    if form is LogFormat.JSON:
        head = {"at": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "level": level, "event": event}
        # What a fact is called never stands in the way of what every line has.
        own = {f"{name}_" if name in head else name: value for name, value in more.items()}
        return json.dumps({**head, **about.to_json(), **own}, default=str) + "\n"
    known = {name: value for name, value in about.to_json().items() if value is not None}
    told = " ".join(f"{name}={_plain(value)}" for name, value in {**known, **more}.items())
    return f"{at:%H:%M:%S} {level.upper()} {event} {told}".rstrip() + "\n"


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if not text or any(c.isspace() for c in text) else text


def read_form(environment: Mapping[str, str] = os.environ) -> LogFormat | None:
    """How the log is written; None where nothing is said.

    Raises:
        InvalidRequestError: `CAP-SETTING` when `CAPSTAN_LOG` is neither `json` nor `plain`.
    """
    said = environment.get(VARIABLE, "").strip().lower()
    if said and said not in tuple(LogFormat):
        raise InvalidRequestError(
            "CAP-SETTING",
            f"{VARIABLE} is {said!r}, not a form of log",
            "give json or plain",
            field=VARIABLE,
        )
    return LogFormat(said) if said else None


def owns_standard_error(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard error is for the log's JSON alone."""
    return read_form(environment) is LogFormat.JSON and not environment.get(FILE)


@contextmanager
def logging(
    usual: LogFormat | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[Log | None]:
    """Log every point that is reached inside the `with` block.

    Args:
        usual: How, where `CAPSTAN_LOG` does not say; None for not at all.
        environment: Where `CAPSTAN_LOG` and `CAPSTAN_LOG_FILE` stand.

    Yields:
        The log; None where there is none.

    Raises:
        InvalidRequestError: `CAP-SETTING` when a form is not known, or the file cannot be written.
    """
    form = read_form(environment) or usual
    if form is None:
        yield None
        return
    with _opened(environment.get(FILE)) as write:
        log = Log(form, write)
        with subscribe(log.reached):
            yield log


@contextmanager
def _opened(named: str | None) -> Iterator[Write]:
    if not named:
        yield _to_standard_error
        return
    try:
        file = os.open(named, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InvalidRequestError(
            "CAP-SETTING",
            f"{FILE} is {named!r}, which cannot be written: {error.strerror or error}",
            "name a file in a folder that is there",
            field=FILE,
        ) from error
    try:
        # A line at once: several processes may append to one file.
        yield lambda text: os.write(file, text.encode())
    finally:
        os.close(file)


def _to_standard_error(text: str) -> None:
    # Looked up each time: a test, or who embeds this, may put another one in its place.
    sys.stderr.write(text)
    sys.stderr.flush()
