"""The releases of timely between which its recordings changed, for the option `--timely`."""

from __future__ import annotations

from enum import StrEnum

from capstan.errors import InvalidRequestError


class Release(StrEnum):
    """The first release of timely that writes a form of recordings.

    The form says how messages state their times. Nothing in a recording tells which it is, and
    bytes of one form are often taken for the other.
    """

    V031 = "0.31"
    """One time."""
    V032 = "0.32"
    """A stamp: the number of its elements, and each of them."""

    @classmethod
    def of(cls, value: object) -> Release:
        """The release with this name; `CAP-TIMELY` for any other."""
        if isinstance(value, str) and value in list(cls):
            return cls(value)
        raise InvalidRequestError(
            "CAP-TIMELY",
            f"not a release of timely whose recordings are known: {str(value)[:80]!r}",
            f"give {' or '.join(cls)}: 0.31 for streams of up to 0.31, 0.32 for those since",
            value=str(value)[:80],
        )

    @property
    def other(self) -> Release:
        """The other form."""
        return Release.V032 if self is Release.V031 else Release.V031
