"""Regions as JSON text in ledgers, and a test for overlap."""

from __future__ import annotations

import json

from capstan.core.times import Antichain, Box, Time, TimeType
from capstan.core.times.box import BoundJson
from capstan.core.times.region import Region
from capstan.core.times.time_type import order_json, order_of
from capstan.storage.ledger.tables import as_text


def region_text(region: Region) -> str:
    """A region as JSON text of integers, independent of the display format of its times."""

    def frontier(value: Antichain | None) -> object:
        return None if value is None else [list(time) for time in value.elements]

    return as_text(
        {
            "since": list(region.box.since),
            "until": list(region.box.until),
            "below": frontier(region.below),
            "above": frontier(region.above),
            **order_json(region.box.order),
        }
    )


def parse_region(text: str) -> Region:
    """Parse the text of `region_text`."""
    value = json.loads(text)
    order = order_of(value)

    def frontier(times: list[list[int]] | None) -> Antichain | None:
        return None if times is None else Antichain.of((Time(time) for time in times), order)

    box = Box(tuple(value["since"]), tuple(value["until"]), order)
    return Region(box, frontier(value["below"]), frontier(value["above"]))


def may_overlap(one: Region, other: Region) -> bool:
    """Whether two regions can have a time in common; exact for totally ordered times."""
    return one.simplified().box.overlaps(other.simplified().box)


def render_bounds(time_type: TimeType, region: Region) -> dict[str, BoundJson]:
    """`since` and `until` of a region as JSON times, null if unbounded."""
    return region.simplified().box.to_json(time_type)
