"""Capstan records streams in Delta Lake, verifies the recordings, and replays any part of them.

`Context` is the way in: a lake, its declarations, and the verbs. Nothing is imported before it is
used: a name costs what it needs, and Spark starts with the first verb that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capstan.api.attach import capture_into
    from capstan.api.context import Context
    from capstan.audit import Audit
    from capstan.capture.run import CaptureResult
    from capstan.core.config import transform
    from capstan.errors import (
        CapstanError,
        CheckFailedError,
        FencedError,
        IncompleteError,
        InvalidRequestError,
        RangeLockedError,
        SystemFailureError,
    )
    from capstan.pipeline import Sink
    from capstan.replay.planning.request import Request as ReplayRequest
    from capstan.storage.lake import Lake
    from capstan.storage.ledger.certificate import Certificate
    from capstan.verify import Verification

_LAZY = {
    "Audit": "capstan.audit:Audit",
    "CapstanError": "capstan.errors:CapstanError",
    "CaptureResult": "capstan.capture.run:CaptureResult",
    "Certificate": "capstan.storage.ledger.certificate:Certificate",
    "CheckFailedError": "capstan.errors:CheckFailedError",
    "Context": "capstan.api.context:Context",
    "FencedError": "capstan.errors:FencedError",
    "IncompleteError": "capstan.errors:IncompleteError",
    "InvalidRequestError": "capstan.errors:InvalidRequestError",
    "Lake": "capstan.storage.lake:Lake",
    "RangeLockedError": "capstan.errors:RangeLockedError",
    "ReplayRequest": "capstan.replay.planning.request:Request",
    "Sink": "capstan.pipeline:Sink",
    "SystemFailureError": "capstan.errors:SystemFailureError",
    "Verification": "capstan.verify:Verification",
    "capture_into": "capstan.api.attach:capture_into",
    "transform": "capstan.core.config:transform",
}

__all__ = [
    "Audit",
    "CapstanError",
    "CaptureResult",
    "Certificate",
    "CheckFailedError",
    "Context",
    "FencedError",
    "IncompleteError",
    "InvalidRequestError",
    "Lake",
    "RangeLockedError",
    "ReplayRequest",
    "Sink",
    "SystemFailureError",
    "Verification",
    "__version__",
    "capture_into",
    "transform",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("capstan-replay")
    if name not in _LAZY:
        raise AttributeError(f"module 'capstan' has no attribute {name!r}")
    module, _, inside = _LAZY[name].partition(":")
    return getattr(import_module(module), inside)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
