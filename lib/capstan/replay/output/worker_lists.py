"""Workers as certificates list them: by their labels while they are few, else by their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.storage.tape.region_sql import stretches

MOST_LISTED = 100
"""The most workers that a certificate lists by their labels, and the most replay workers."""


def listed(workers: Mapping[int, str]) -> list[str] | dict[str, object]:
    """Workers for a certificate, which stays small whatever their number.

    Args:
        workers: Their labels by number.

    Returns:
        The labels, in the order given; of more than `MOST_LISTED` their `count`, and `numbers`, a
        list of the first and the last number of each stretch. The tape has the labels of these.
    """
    if len(workers) <= MOST_LISTED:
        return list(workers.values())
    return {"count": len(workers), "numbers": list(map(list, stretches(sorted(workers))))}


def may_have(said: object, workers: Mapping[int, str]) -> bool:
    """Whether one of `workers` may be among those that a certificate lists.

    Args:
        said: What `listed` has given; any older certificate has the labels.
        workers: Labels by number, of the same stream.
    """
    if isinstance(said, list):
        return bool(set(said) & set(workers.values()))
    if not isinstance(said, Mapping):
        return True
    stretches = (range(first, last + 1) for first, last in said["numbers"])
    return any(number in workers for stretch in stretches for number in stretch)
