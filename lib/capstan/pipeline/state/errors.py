"""What can be wrong with keyed state, each as an error of its own.

Each is raised with `of`, which fills in its code and its hint; the facts are in `fields`.
"""

from __future__ import annotations

from capstan.errors import CodedError, InvalidRequestError, SystemFailureError


class StateError(CodedError, InvalidRequestError):
    """Something that was asked of keyed state cannot be meant as it stands."""

    CODE = "CAP-STATE"


class NoHash(StateError):
    """Raised for a key that has no stable hash; `type`."""

    CODE = "CAP-STATE-KEY"
    HINT = "Key by integers, booleans, strings, bytes, dates, timestamps or decimals."


class KeyChanged(StateError):
    """Raised when a logic puts a record out under another key; `operator`, `key`, `found`."""

    CODE = "CAP-STATE-KEY-CHANGED"
    HINT = "Put records out under the key they came in by; distribute anew to change it."


class LateRecord(StateError):
    """Raised when a logic puts a record out at or before the last epoch; `operator`, `time`."""

    CODE = "CAP-STATE-LATE"
    HINT = "Put records out after the last epoch; nothing at or before it may follow."


class MixedAlignment(StateError):
    """Raised when one input has reached a barrier and another one a suspend marker; `waiting`."""

    CODE = "CAP-STATE-ALIGNMENT"
    HINT = "Let a snapshot end before anything is suspended."


class Suspended(StateError):
    """Raised when something is sent after a suspend marker."""

    CODE = "CAP-STATE-SUSPENDED"
    HINT = "Start the job again; it goes on from its last snapshot."


class DuplicateOperator(StateError):
    """Raised when two stateful operators have one name; `name`."""

    CODE = "CAP-STATE-DUPLICATE"
    HINT = "Give each stateful operator a name of its own: it is the identity of its state."


class UnknownWorker(StateError):
    """Raised for a worker that does not take part, or no longer takes records; `worker`."""

    CODE = "CAP-STATE-WORKER"
    HINT = "Give records to one of the workers that the coordinator names."


class ConcurrentOperation(StateError):
    """Raised when a snapshot or a rescale is begun while another one runs; `running`."""

    CODE = "CAP-STATE-BUSY"
    HINT = "Let the running operation end, then ask again."


class SnapshotCorrupt(StateError):
    """Raised when bytes are not a whole snapshot that this version reads; `reason`."""

    CODE = "CAP-STATE-CORRUPT"
    HINT = "Restore an earlier snapshot."


class NoCodec(StateError):
    """Raised for a codec that nobody registered; `codec`."""

    CODE = "CAP-STATE-CODEC"
    HINT = "Register the codec by which the state was written."


class StateVersion(StateError):
    """Raised for a state of another version that no migration leads from; `operator`, `found`."""

    CODE = "CAP-STATE-VERSION"
    HINT = "Give the logic a migration from that version, or begin with no state."


class NotKeyed(StateError):
    """Raised when a state cannot be dealt to other workers by its keys; `operator`."""

    CODE = "CAP-STATE-NOT-KEYED"
    HINT = "Restore the snapshot on as many workers as it was taken on."


class NotWhole(StateError):
    """Raised when states are not at the same point, or do not fit together; `reason`."""

    CODE = "CAP-STATE-NOT-WHOLE"
    HINT = "Rescale a snapshot that all workers took at one barrier."


class StateLost(CodedError, SystemFailureError):
    """Raised when a state cannot be written or read back; nothing is committed. `operator`."""

    CODE = "CAP-STATE-LOST"
    HINT = "Mend the logic or its codec; the last snapshot that counts is as it was."


class Misplaced(CodedError, SystemFailureError):
    """Raised when the proof of a rescale fails; `lost`, `twice`, `misplaced`."""

    CODE = "CAP-STATE-MISPLACED"
    HINT = "Nothing was committed; go on from the snapshot before."


class Stuck(CodedError, SystemFailureError):
    """Raised when workers wait for each other and nothing can move; `waiting`."""

    CODE = "CAP-STATE-STUCK"
    HINT = "This is a defect of the runtime; its seed and schedule show it again."
