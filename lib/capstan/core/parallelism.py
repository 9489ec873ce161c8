"""Limits on the number of workers that a request may ask for."""

from __future__ import annotations

from capstan.errors import InvalidRequestError


def check_parallelism(count: int, noun: str = "workers", *, most: int | None = 10_000) -> None:
    """Check a requested number of workers; `most` None is no limit."""
    if count < 1 or (most is not None and count > most):
        allowed = "1 or more" if most is None else f"1 to {most}"
        raise InvalidRequestError(
            "CAP-PEERS", f"{count} {noun} are not possible", f"choose {allowed}"
        )
