"""Times, their partial order, and frontiers of them."""

from __future__ import annotations

from capstan.times.antichain import Antichain, complete
from capstan.times.box import Bound, BoundJson, Box
from capstan.times.change_batch import ChangeBatch
from capstan.times.coordinate import Coordinate, Kind
from capstan.times.mutable_antichain import MutableAntichain
from capstan.times.time import Time, less_equal
from capstan.times.time_type import TimeJson, TimeType

__all__ = [
    "Antichain",
    "Bound",
    "BoundJson",
    "Box",
    "ChangeBatch",
    "Coordinate",
    "Kind",
    "MutableAntichain",
    "Time",
    "TimeJson",
    "TimeType",
    "complete",
    "less_equal",
]
