"""The error tree. Every failure that Capstan reports has a code, a location and a next step.

The class of an error determines how a caller can react, and the exit code of the process:

| class | exit code | meaning |
| --- | --- | --- |
| `CheckFailedError` | 1 | a check ran and failed (a violation, a failed audit) |
| `InvalidRequestError` | 2 | the request is invalid, nothing was changed |
| `IncompleteError` | 3 | valid, but too early: times are not complete, or backfills are paused |
| `RangeLockedError` | 4 | another run holds a lock on part of the range |
| `SystemFailureError` | 5 | a component that should work does not |
"""

from __future__ import annotations

from typing import ClassVar, Self

from capstan.errors import redaction


class CapstanError(Exception):
    """A failure with a stable code, a one-line message and a hint for the next step.

    Its texts do not show secret values; see `capstan.errors.redaction`.

    Attributes:
        code: Stable name, `CAP-...`, for scripts and for searching.
        message: One line that states the problem and its location.
        hint: The next step, or an empty string.
        fields: The facts in the message by name, for JSON and logs.
    """

    exit_code: ClassVar[int] = 5

    def __init__(self, code: str, message: str, hint: str = "", **fields: object) -> None:
        message, hint = redaction.masked(message), redaction.masked(hint)
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint
        self.fields = {name: redaction.masked_value(value) for name, value in fields.items()}

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from Spark's Python workers to the driver by pickle.
        return _rebuild, (type(self), self.code, self.message, self.hint, self.fields)

    def to_json(self) -> dict[str, object]:
        """The error as the object that `--json` prints: summary and fields."""
        return {**self.summary(), **self.fields}

    def summary(self) -> dict[str, object]:
        """Code, message and hint without the fields, to embed in a result."""
        return {"error": self.code, "message": self.message, "hint": self.hint}


class CodedError(CapstanError):
    """An error class with a fixed code and hint; instances come from `create`."""

    CODE: ClassVar[str]
    HINT: ClassVar[str] = ""

    @classmethod
    def create(cls, message: str, **fields: object) -> Self:
        """An error with the code and hint of the class."""
        return cls(cls.CODE, message, cls.HINT, **fields)


def _rebuild(
    error_class: type[CapstanError], code: str, message: str, hint: str, fields: dict[str, object]
) -> CapstanError:
    return error_class(code, message, hint, **fields)


class CheckFailedError(CapstanError):
    """Raised when a check ran and failed: a violation, a failed audit."""

    exit_code = 1


class InvalidRequestError(CapstanError):
    """Raised for an invalid request. Nothing was changed."""

    exit_code = 2


class IncompleteError(CapstanError):
    """Raised for what is valid but too early: incomplete times, or a backfill that is paused."""

    exit_code = 3


class RangeLockedError(CapstanError):
    """Raised when another run has claimed an overlapping range of the target."""

    exit_code = 4


class SystemFailureError(CapstanError):
    """Raised when a component fails: Java is missing, the lake cannot be read."""

    exit_code = 5


class FencedError(SystemFailureError):
    """Raised when a later attempt of the same work has taken over."""
