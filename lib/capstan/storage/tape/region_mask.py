"""Masks for times in a region, as numpy arrays or as filters of a scan."""

from __future__ import annotations

from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import dataset

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.core.times.box_conditions import OPERATORS, box_conditions
from capstan.core.times.region import Region
from capstan.storage.tape.index import arrow_coordinates

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

_ARROW = {
    Kind.BIGINT: pa.int64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def is_timed(time_type: TimeType) -> dataset.Expression:
    """The condition that a row has a time."""
    return dataset.field("time", time_type.names[0]).is_valid()


def in_box(time_type: TimeType, box: Box) -> dataset.Expression:
    """The condition that a row has a time inside a box."""

    def compared(axis: int, sign: str, bound: int) -> dataset.Expression:
        coordinate = time_type.coordinates[axis]
        field = dataset.field("time", coordinate.name)
        condition: dataset.Expression = OPERATORS[sign](
            field, pa.scalar(bound, _ARROW[coordinate.kind])
        )
        return condition

    return reduce(and_, box_conditions(box, compared), is_timed(time_type))


def numbers_of(column: pa.StructArray, time_type: TimeType) -> Numbers:
    """The times of a column without nulls as rows of coordinates."""
    fields = [c.to_numpy(zero_copy_only=False) for c in arrow_coordinates(column, time_type)]
    return np.stack(fields, axis=1).astype(np.int64)


def inside(region: Region, times: Numbers) -> Mask:
    """The mask of times, given as rows of coordinates, that are in a region."""
    region = region.simplified()

    def compared(axis: int, sign: str, bound: int) -> Mask:
        mask: Mask = OPERATORS[sign](times[:, axis], bound)
        return mask

    everywhere: Mask = np.ones(len(times), dtype=np.bool_)
    mask = reduce(and_, box_conditions(region.box, compared), everywhere)
    if region.below is not None:
        mask &= ~_at_or_above(region.below, times)
    if region.above is not None:
        mask &= _at_or_above(region.above, times)
    return mask


def _at_or_above(frontier: Antichain, times: Numbers) -> Mask:
    """The mask of times at or above an element of a frontier."""
    mask: Mask = np.zeros(len(times), dtype=np.bool_)
    for element in frontier.elements:
        mask |= (times >= np.array(element, dtype=np.int64)).all(axis=1)
    return mask
