"""Times, their order, and frontiers of them."""

from __future__ import annotations

from capstan.core.times.adjoining_ranges import AdjoiningRanges
from capstan.core.times.antichain import Antichain, complete
from capstan.core.times.box import Bound, Box
from capstan.core.times.change_batch import ChangeBatch
from capstan.core.times.coordinate import Coordinate, Kind
from capstan.core.times.mutable_antichain import MutableAntichain
from capstan.core.times.order import PAIR, PRODUCT, TimeOrder
from capstan.core.times.time import Time, less_equal
from capstan.core.times.time_type import TimeType

__all__ = [
    "PAIR",
    "PRODUCT",
    "AdjoiningRanges",
    "Antichain",
    "Bound",
    "Box",
    "ChangeBatch",
    "Coordinate",
    "Kind",
    "MutableAntichain",
    "Time",
    "TimeOrder",
    "TimeType",
    "complete",
    "less_equal",
]
