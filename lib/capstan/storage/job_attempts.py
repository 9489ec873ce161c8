"""Attempts of jobs: request, declarations and result in the lake, under a name.

    <lake>/jobs/<attempt>/request.json    the request, if it was put there
    <lake>/jobs/<attempt>/streams.yaml    the declarations, if they were put there
    <lake>/jobs/<attempt>/alive.json      when a job at work was last seen, by itself; or when it
                                          was submitted, and by when it has to begin
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
from capstan.errors import InvalidRequestError
from capstan.storage.lake import (
    Lake,
    children,
    delete_file,
    delete_folder,
    exists,
    list_files,
    read_if_any,
    write_whole,
)
from capstan.storage.ledger.made_by import KEY

SIGNS_EVERY = 30.0
"""Seconds between two signs of life of a job."""
SILENT = timedelta(minutes=5)
"""A job without a sign of life for so long is dead."""
QUEUED = timedelta(hours=1)
"""A job that has not begun for so long after its submission is dead."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    attempt: str
    verb: str  # such as `replay`
    exit_code: int
    result: Json | None
    error: Json | None  # JSON of `error`, `message`, `hint` and facts
    at: str  # ISO 8601
    request: str | None = None  # a hash of the request; None if none could be read

    def answers(self, request: Json) -> bool:
        """Whether it is of a start with this request, as far as it says."""
        return self.request in (None, _digest(request))

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
            "request": (str, type(None)),
        }
        for key, kind in kinds.items():
            if not isinstance(value.get(key), kind):  # type: ignore[arg-type]
                raise TypeError(f"its key {key!r} is missing or of another type")
        return cls(**{key: value[key] for key in kinds if key in value})


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
        self.clear()
        if declarations is not None:
            self._write("streams.yaml", declarations)
        self._write("request.json", json.dumps(request))

    def begin(self) -> None:
        """Delete the result of an earlier start; the first sign replaces that one's last sign."""
        delete_file(self.result_path)

    def clear(self) -> None:
        """Delete what a start has left, which must not pass for the next one's."""
        self.begin()
        self.forget()

    def withdraw(self) -> None:
        """Delete the request: its result was taken, and what begins now has nothing to do."""
        delete_file(f"{self.lake.job(self.name)}/request.json")

    def request(self) -> str | None:
        """The text of the request in the lake; None if there is none."""
        return self._read("request.json")

    def prepared(self) -> dict[str, object] | None:
        """The request in the lake, without who has made it; None if there is none."""
        text = self.request()
        return None if text is None else _unsigned(json.loads(text))

    def declarations(self) -> str | None:
        """The text of the declarations in the lake; None if there are none."""
        return self._read("streams.yaml")

    def sign(self, request: Json, begins: timedelta | None = None) -> None:
        """Leave a sign of life of a start with this request, or that it `begins` within a time."""
        self.lake.require()
        now = datetime.now(UTC)
        sign = {"at": now.isoformat(), "request": _digest(request)}
        if begins is not None:
            sign["begins_by"] = (now + begins).isoformat()
        self._write("alive.json", json.dumps(sign))

    def last_sign(self) -> datetime | None:
        """The last sign of life of a start that has not ended; None without one."""
        sign = self._sign()
        return None if sign is None else datetime.fromisoformat(sign["at"])

    def is_at_work(self, request: Json) -> bool:
        """Whether a start with this request gives signs of life."""
        return not self.is_queued() and self.is_awaited(request)

    def is_queued(self) -> bool:
        """Whether a start was submitted, and has not begun."""
        return "begins_by" in (self._sign() or {})

    def is_awaited(self, request: Json) -> bool:
        """Whether a start with this request is at work, or was submitted and may still begin."""
        sign = self._sign()
        return sign is not None and sign["request"] == _digest(request) and not _is_silent(sign)

    def is_at_work_on_another(self, request: Json) -> bool:
        """Whether a start with another request gives signs of life."""
        sign = self._sign()
        busy = sign is not None and "begins_by" not in sign and not _is_silent(sign)
        return busy and not self.is_awaited(request)

    def is_pending(self, request: Json) -> bool:
        """Whether a start with this prepared request has left a result, or may still do so."""
        if exists(self.result_path):
            prepared = self.prepared()
            return prepared is not None and _digest(prepared) == _digest(request)
        return self.is_awaited(request)

    def has_died(self) -> bool:
        """Whether a start gives no sign of life any more, and has left no result."""
        sign = self._sign()
        return sign is not None and _is_silent(sign) and self.outcome() is None

    def is_over(self) -> bool:
        """Whether there is a result, of whatever content, or will be none."""
        return exists(self.result_path) or self.has_died()

    def forget(self) -> None:
        """Delete the last sign of life: its start has ended, or its death is known."""
        delete_file(self._alive)

    @property
    def _alive(self) -> str:
        return f"{self.lake.job(self.name)}/alive.json"

    def _sign(self) -> dict[str, str] | None:
        text = self._read("alive.json")
        return None if text is None else dict(json.loads(text))

    def end(
        self,
        verb: str,
        exit_code: int,
        result: Json | None,
        error: Json | None,
        request: Json | None = None,
    ) -> None:
        """Write the result of a start with this request, atomically."""
        self.lake.require()
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        digest = None if request is None else _digest(request)
        ended = JobOutcome(self.name, verb, exit_code, result, error, at, digest)
        self._write("result.json", json.dumps(asdict(ended), default=str) + "\n")
        self.forget()

    def outcome(self) -> JobOutcome | None:
        """How the job ended; None while it has left no result."""
        text = self._read("result.json")
        try:
            return None if text is None else JobOutcome.from_json(json.loads(text))
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                "CAP-RESULT",
                f"{self.result_path} is not the result of a job: {error}",
                "start the job again, which replaces it",
            ) from error

    def _read(self, name: str) -> str | None:
        path = f"{self.lake.job(self.name)}/{name}"
        return read_if_any(path)

    def _write(self, name: str, text: str) -> None:
        write_whole(f"{self.lake.job(self.name)}/{name}", text.encode("utf-8"))


def _is_silent(sign: dict[str, str]) -> bool:
    last = datetime.fromisoformat(sign["at"])
    by = datetime.fromisoformat(sign["begins_by"]) if "begins_by" in sign else last + SILENT
    return datetime.now(UTC) >= by


def _unsigned(request: Json) -> dict[str, object]:
    return {key: value for key, value in request.items() if key != KEY}


def _digest(request: Json) -> str:
    text = json.dumps(_unsigned(request), sort_keys=True, default=str)
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
