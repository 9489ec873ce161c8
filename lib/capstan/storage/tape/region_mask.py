"""Which times of a column lie in a region: all at once, and by their box while they are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import dataset

from capstan.core.times import Antichain, Box, Kind, TimeType
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
    """The condition that a row has a time at all."""
    return dataset.field("time", time_type.names[0]).is_valid()


def in_box(time_type: TimeType, box: Box) -> dataset.Expression:
    """The condition that a row has a time, and that it lies in a box."""
    found = is_timed(time_type)
    for coordinate, since, until in zip(time_type.coordinates, box.since, box.until, strict=True):
        field, kind = dataset.field("time", coordinate.name), _ARROW[coordinate.kind]
        if since is not None:
            found &= field >= pa.scalar(since, kind)
        if until is not None:
            found &= field < pa.scalar(until, kind)
    return found


def numbers_of(column: pa.StructArray, time_type: TimeType) -> Numbers:
    """A row of coordinates for each time of a column, none of them null."""
    fields = [each.to_numpy(zero_copy_only=False) for each in arrow_coordinates(column, time_type)]
    return np.stack(fields, axis=1).astype(np.int64)


def inside(region: Region, times: Numbers) -> Mask:
    """Which times, a row of coordinates each, are in a region."""
    region = region.simplified()
    mask: Mask = np.ones(len(times), dtype=np.bool_)
    for axis, (since, until) in enumerate(zip(region.box.since, region.box.until, strict=True)):
        if since is not None:
            mask &= times[:, axis] >= since
        if until is not None:
            mask &= times[:, axis] < until
    if region.below is not None:
        mask &= ~_reached(region.below, times)
    if region.above is not None:
        mask &= _reached(region.above, times)
    return mask


def _reached(frontier: Antichain, times: Numbers) -> Mask:
    """Which times are at or after an element of a frontier."""
    mask: Mask = np.zeros(len(times), dtype=np.bool_)
    for element in frontier.elements:
        mask |= (times >= np.array(element, dtype=np.int64)).all(axis=1)
    return mask
