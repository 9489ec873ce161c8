"""Prefetch of the overview's tables.

A new server process has opened no table yet, and a hundred streams have some three hundred. Any
page of Airflow requests the plugin's icon for its navigation, which leaves time to read before the
user follows the link.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from capstan.airflow.settings import Settings
from capstan.errors import CapstanError
from capstan.reporting.coverage_view import view_coverages
from capstan.reporting.run_view import list_runs
from capstan.reporting.stream_view import stream_names, view_streams
from capstan.storage.lake import Lake


def read_ahead(read: Callable[[], Settings]) -> Thread:
    """Start a thread that reads the overview's tables into the cache."""
    # Requests that arrive meanwhile wait for the tables being read. Nothing is shown to anybody.
    thread = Thread(target=_read, args=(read(),), name="capstan-ahead")
    thread.start()
    return thread


def _read(settings: Settings) -> None:
    lake, declared = Lake.at(settings.lake), settings.declarations
    try:
        lake.require()
        list_runs(lake)
        view_streams(lake, declared, stream_names(lake, declared))
        view_coverages(lake, declared, list(declared.replays))
    except CapstanError:
        # The page reads again, and reports the error to its user.
        return
