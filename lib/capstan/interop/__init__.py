"""Recordings of other systems: timely dataflow, Kafka, files; onto tapes and off them."""

from __future__ import annotations

from capstan import former_paths


def __getattr__(name: str) -> object:
    """What was here before it moved to `capstan.interop.timely`.

    Raises:
        AttributeError: There is no such name.
    """
    return former_paths.attribute(__name__, "capstan.interop.timely", name)
