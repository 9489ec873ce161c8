"""Errors of keyed state.

Raise each with `create`, which adds its code and its hint; facts are in `fields`.
"""

from __future__ import annotations

from capstan.errors import CodedError, InvalidRequestError, SystemFailureError


class StateError(CodedError, InvalidRequestError):
    """Base of errors for an invalid request to keyed state."""

    CODE = "CAP-STATE"


class NoHash(StateError):
    """Raised for a key without a stable hash; `type`."""

    CODE = "CAP-STATE-KEY"
    HINT = "key by integers, booleans, strings, bytes, dates, timestamps or decimals"


class KeyChanged(StateError):
    """Raised when a logic emits a record under another key; `operator`, `key`, `found`."""

    CODE = "CAP-STATE-KEY-CHANGED"
    HINT = "emit records under the key of their input; repartition the output to change the key"


class LateRecord(StateError):
    """Raised when a logic emits a record at or before the last epoch; `operator`, `time`."""

    CODE = "CAP-STATE-LATE"
    HINT = "emit records after the last epoch; nothing at or before it may follow"


class SnapshotCorrupt(StateError):
    """Raised when bytes are not a complete snapshot of a supported version; `reason`."""

    CODE = "CAP-STATE-CORRUPT"
    HINT = "restore an earlier snapshot"


class NoCodec(StateError):
    """Raised for a codec that is not registered; `codec`."""

    CODE = "CAP-STATE-CODEC"
    HINT = "register the codec that wrote the state"


class StateVersion(StateError):
    """Raised for a state whose version has no migration; `operator`, `found`."""

    CODE = "CAP-STATE-VERSION"
    HINT = "give the logic a migration from that version, or begin without state"


class NotKeyed(StateError):
    """Raised when a state cannot be rescaled by its keys; `operator`."""

    CODE = "CAP-STATE-NOT-KEYED"
    HINT = "restore the snapshot on the number of workers that took it"


class NotWhole(StateError):
    """Raised when states are not at the same point, or do not match; `reason`."""

    CODE = "CAP-STATE-NOT-WHOLE"
    HINT = "rescale a snapshot that all workers took at one barrier"


class StateLost(CodedError, SystemFailureError):
    """Raised when a state cannot be encoded or decoded; nothing is committed. `operator`."""

    CODE = "CAP-STATE-LOST"
    HINT = "fix the logic or its codec; the last valid snapshot is unchanged"


class Misplaced(CodedError, SystemFailureError):
    """Raised when the verification of a rescale fails; `lost`, `twice`, `misplaced`."""

    CODE = "CAP-STATE-MISPLACED"
    HINT = "nothing was committed; continue from the previous snapshot"
