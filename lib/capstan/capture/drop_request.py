"""The request to drop records of `late`, checked without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field

from capstan.errors import InvalidRequestError
from capstan.storage.late.late_rows import LateSelection


@dataclass(frozen=True, slots=True)
class Drop:
    """Records of `late` to drop, who drops them and why; checked.

    With `undo`, the number of a batch that dropped some, these are open again instead.
    """

    by: str
    because: str = ""
    selection: LateSelection = field(default_factory=LateSelection)
    undo: int | None = None

    def __post_init__(self) -> None:
        if self.undo is not None and (self.because or self.selection != LateSelection()):
            raise InvalidRequestError(
                "CAP-REQUEST",
                "a batch is opened again as a whole: undrop goes without a reason and a selection",
                "name the batch alone",
            )
        if self.undo is None and not self.because.strip():
            raise InvalidRequestError(
                "CAP-REQUEST",
                "records are dropped for a reason that is kept, and none is given",
                "say why, with --because TEXT",
            )
