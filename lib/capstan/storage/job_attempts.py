"""Attempts of jobs: request, declarations and result in the lake, under a name.

    <lake>/jobs/<attempt>/request.json    the request, if it was put there
    <lake>/jobs/<attempt>/streams.yaml    the declarations, if they were put there
    <lake>/jobs/<attempt>/alive.json      when a job at work was last seen, by itself
    <lake>/jobs/<attempt>/result.json     how the job ended

So the program that submits a job, and the one that takes its result, share nothing but the lake.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from capstan.core.config import check_attempt
from capstan.core.json_object import Json
from capstan.storage.lake import (
    Lake,
    children,
    delete_file,
    delete_folder,
    list_files,
    read_if_any,
    write_whole,
)

SIGNS_EVERY = 30.0
"""Seconds between two signs of life of a job."""
SILENT = timedelta(minutes=5)
"""A job without a sign of life for so long is dead."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    attempt: str
    verb: str  # such as `replay`
    exit_code: int
    result: Json | None
    error: Json | None  # JSON of `error`, `message`, `hint` and facts
    at: str  # ISO 8601

    @property
    def report(self) -> dict[str, object]:
        """Result and error as one object, as the file of `--result` has it."""
        return {**(self.result or {}), **(self.error or {})}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The outcome that `asdict` has made JSON of."""
        if not isinstance(value, dict):
            raise TypeError("it is not a JSON object")
        kinds = {
            "attempt": str,
            "verb": str,
            "exit_code": int,
            "result": (dict, type(None)),
            "error": (dict, type(None)),
            "at": str,
        }
        for key, kind in kinds.items():
            if not isinstance(value.get(key), kind):  # type: ignore[arg-type]
                raise TypeError(f"its key {key!r} is missing or of another type")
        return cls(**{key: value[key] for key in kinds})


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One start of a job, by a name that `check_attempt` accepts."""

    lake: Lake
    name: str

    def __post_init__(self) -> None:
        """Check the name."""
        check_attempt(self.name)

    @property
    def result_path(self) -> str:
        """The path of the result."""
        return f"{self.lake.job(self.name)}/result.json"

    def prepare(self, request: Json, declarations: str | None = None) -> None:
        """Put a request into the lake for the job, and delete the result of an earlier one.

        `declarations` is the text of the declaration file; None if the job has its own.
        """
        self.begin()
        if declarations is not None:
            self._write("streams.yaml", declarations)
        self._write("request.json", json.dumps(request))

    def begin(self) -> None:
        """Delete what an earlier start has left, which must not pass for this one's."""
        delete_file(self.result_path)
        self.forget()

    def request(self) -> str | None:
        """The text of the request in the lake; None if there is none."""
        return self._read("request.json")

    def declarations(self) -> str | None:
        """The text of the declarations in the lake; None if there are none."""
        return self._read("streams.yaml")

    def sign(self, request: Json) -> None:
        """Leave a sign of life of a start with this request."""
        self.lake.require()
        sign = {"at": datetime.now(UTC).isoformat(), "request": _digest(request)}
        self._write("alive.json", json.dumps(sign))

    def last_sign(self) -> datetime | None:
        """The last sign of life of a start that has not ended; None without one."""
        sign = self._sign()
        return None if sign is None else datetime.fromisoformat(sign["at"])

    def is_at_work(self, request: Json) -> bool:
        """Whether a start with this request gives signs of life."""
        sign, last = self._sign(), self.last_sign()
        if sign is None or last is None or sign["request"] != _digest(request):
            return False
        return datetime.now(UTC) - last < SILENT

    def has_died(self) -> bool:
        """Whether a start gives no sign of life any more, and has left no result."""
        last = self.last_sign()
        return last is not None and datetime.now(UTC) - last >= SILENT and self.outcome() is None

    def forget(self) -> None:
        """Delete the last sign of life: its start has ended, or its death is known."""
        delete_file(self._alive)

    @property
    def _alive(self) -> str:
        return f"{self.lake.job(self.name)}/alive.json"

    def _sign(self) -> dict[str, str] | None:
        text = self._read("alive.json")
        return None if text is None else dict(json.loads(text))

    def end(self, verb: str, exit_code: int, result: Json | None, error: Json | None) -> None:
        """Write the result, atomically."""
        self.lake.require()
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        ended = JobOutcome(self.name, verb, exit_code, result, error, at)
        self._write("result.json", json.dumps(asdict(ended), default=str) + "\n")
        self.forget()

    def outcome(self) -> JobOutcome | None:
        """How the job ended; None while it has left no result."""
        text = self._read("result.json")
        return None if text is None else JobOutcome.from_json(json.loads(text))

    def _read(self, name: str) -> str | None:
        path = f"{self.lake.job(self.name)}/{name}"
        return read_if_any(path)

    def _write(self, name: str, text: str) -> None:
        write_whole(f"{self.lake.job(self.name)}/{name}", text.encode("utf-8"))


def _digest(request: Json) -> str:
    text = json.dumps(dict(request), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def clear_attempts(lake: Lake, now: datetime, keep: timedelta) -> list[str]:
    """Delete attempts whose newest file is at least `keep` old; returns their names."""
    cleared = []
    for name in children(f"{lake.root}/jobs"):
        folder = f"{lake.root}/jobs/{name}"
        # Something else may lie there, which is not ours.
        changed = [info.mtime for info in list_files(folder)] if children(folder) else []
        if changed and now - max(changed) >= keep:
            delete_folder(folder)
            cleared.append(name)
    return cleared
