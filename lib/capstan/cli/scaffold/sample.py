"""A week of orders of three shops, as JSON lines: a file a day, the same on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

SHOPS: Final = ("berlin", "lisbon", "oslo")
FIRST_DAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
DAYS: Final = 7
_PER_DAY: Final = 72
_ITEMS: Final = ("lamp", "chair", "desk", "shelf", "rug")
# A day's file closes at midnight: the day is complete once the next file has arrived, by this row.
_CLOSING: Final = timedelta(hours=3)


def sample_files() -> Iterator[tuple[str, str]]:
    """Name and text of each file, in the order of arrival.

    Each row has `id` BIGINT, `shop` STRING, `item` STRING, `quantity` INT, `cents` BIGINT and
    `placed_at` TIMESTAMP (UTC); times in a file do not ascend.
    """
    number = 0
    for day in range(DAYS + 1):
        start = FIRST_DAY + timedelta(days=day)
        orders = []
        for turn in range(_PER_DAY if day < DAYS else len(SHOPS)):
            number += 1
            # 37 and 72 have no common divisor: every twentieth minute of the day is met once.
            minute = (turn * 37) % _PER_DAY * 20
            placed = start + (timedelta(minutes=minute) if day < DAYS else _CLOSING)
            orders.append(_order(number, turn, placed))
        yield f"{start:%Y-%m-%d}.json", "".join(json.dumps(order) + "\n" for order in orders)


def _order(number: int, turn: int, placed: datetime) -> dict[str, object]:
    quantity = 1 + number * 7 % 4
    return {
        "id": number,
        "shop": SHOPS[turn % len(SHOPS)],
        "item": _ITEMS[number * 3 % len(_ITEMS)],
        "quantity": quantity,
        "cents": quantity * (1990 + number * 613 % 8000),
        "placed_at": f"{placed:%Y-%m-%dT%H:%M:%SZ}",
    }
