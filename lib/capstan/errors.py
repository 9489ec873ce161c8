"""The error tree: every failure that Capstan reports has a code, a place and a next step.

The class of an error is a decision that a caller can take, and fixes the exit code of the process:

| class | exit code | meaning |
| --- | --- | --- |
| `CheckFailedError` | 1 | understood, and the answer is no (a violation, a failed audit) |
| `InvalidRequestError` | 2 | the request is wrong, nothing was changed |
| `IncompleteError` | 3 | right, but too early: times in the range can still receive records |
| `RangeLockedError` | 4 | another run holds that range of that target |
| `SystemFailureError` | 5 | something that should work does not |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from capstan import former_paths


class CapstanError(Exception):
    """A failure with a stable code, one line of what and where, and a hint what to do next.

    Attributes:
        code: Stable name, `CAP-...`; scripts and people search for it.
        message: One line: what is wrong, and where.
        hint: What to do next, or an empty string.
        fields: The facts of the message by name, for JSON and logs.
    """

    exit_code: ClassVar[int] = 5

    def __init__(self, code: str, message: str, hint: str = "", **fields: object) -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross the border between Spark's Python workers and the driver by pickle.
        return _rebuild, (type(self), self.code, self.message, self.hint, self.fields)

    def to_json(self) -> dict[str, object]:
        """The error as the object that `--json` prints."""
        return {**self.summary(), **self.fields}

    def summary(self) -> dict[str, object]:
        """Code, message and hint alone, to stand beside fields of a result."""
        return {"error": self.code, "message": self.message, "hint": self.hint}


class CodedError(CapstanError):
    """A failure that is a class of its own, with one code and one hint; raised by `create`.

    Attributes:
        CODE: The code of all its failures.
        HINT: What to do next.
    """

    CODE: ClassVar[str]
    HINT: ClassVar[str] = ""

    @classmethod
    def create(cls, message: str, **fields: object) -> Self:
        """The error with the code and the hint of its class."""
        return cls(cls.CODE, message, cls.HINT, **fields)


def _rebuild(
    kind: type[CapstanError], code: str, message: str, hint: str, fields: dict[str, object]
) -> CapstanError:
    return kind(code, message, hint, **fields)


class CheckFailedError(CapstanError):
    """Raised when a check was carried out and failed: a violation, a failed audit."""

    exit_code = 1


class InvalidRequestError(CapstanError):
    """Raised when the request cannot be meant as it stands; nothing was changed."""

    exit_code = 2


class IncompleteError(CapstanError):
    """Raised when times of the range can still receive records."""

    exit_code = 3


class RangeLockedError(CapstanError):
    """Raised when another run holds an overlapping range of the target."""

    exit_code = 4


class SystemFailureError(CapstanError):
    """Raised when a part that should work does not: a missing Java, a lake that cannot be read."""

    exit_code = 5


class FencedError(SystemFailureError):
    """Raised when a later attempt of the same work has taken over from this one."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[CapstanError]:
        """An error by its former name.

        Raises:
            AttributeError: There is none.
        """
        return former_paths.renamed(__name__, name)
