"""Recordings of other systems (timely dataflow, Kafka, files): import and export."""

from __future__ import annotations

from capstan import former_paths


def __getattr__(name: str) -> object:
    """Look up a name that moved to `capstan.interop.timely`.

    Raises:
        AttributeError: There is no such name.
    """
    return former_paths.attribute(__name__, "capstan.interop.timely", name)
