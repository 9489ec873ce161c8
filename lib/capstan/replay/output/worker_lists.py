"""The list of workers in a certificate: labels while they are few, else ranges of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.storage.tape.region_sql import integer_ranges

MOST_LISTED = 100
"""The most workers that a certificate lists by their labels, and the most replay workers."""


def listed(workers: Mapping[int, str]) -> list[str] | dict[str, object]:
    """Workers as a certificate lists them, in little space whatever their number.

    Args:
        workers: Labels by number.

    Returns:
        The labels, in the order given. For more than `MOST_LISTED` workers: their `count`, and
        `numbers`, the first and the last number of each contiguous range.
    """
    if len(workers) <= MOST_LISTED:
        return list(workers.values())
    return {"count": len(workers), "numbers": list(map(list, integer_ranges(sorted(workers))))}


def may_have(listing: object, workers: Mapping[int, str]) -> bool:
    """Whether a certificate may list one of `workers`.

    Args:
        listing: The result of `listed`; older certificates have labels.
        workers: Labels by number, of the same stream.
    """
    if isinstance(listing, list):
        return bool(set(listing) & set(workers.values()))
    if not isinstance(listing, Mapping):
        return True
    stretches = (range(first, last + 1) for first, last in listing["numbers"])
    return any(number in workers for stretch in stretches for number in stretch)
