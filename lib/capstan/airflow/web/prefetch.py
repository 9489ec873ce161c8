"""What the overview shows, read before anybody has asked for it.

A process that begins to serve pages has opened no table yet, and of a hundred streams there are
some three hundred. Whoever looks at any page of Airflow has its navigation ask for the plugin's
icon: from then on there is time until they have found the link.
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


def read_ahead(setting: Callable[[], Settings]) -> Thread:
    """Begin to read, in a thread of its own, what the overview of a lake is made of.

    It stays in memory, whoever asks for it meanwhile waits for what is being read, and nothing of
    it is shown to anybody by this.

    Args:
        setting: Reads where the lake is, and what is declared.

    Returns:
        The thread.
    """
    thread = Thread(target=_read, args=(setting(),), name="capstan-ahead")
    thread.start()
    return thread


def _read(setting: Settings) -> None:
    lake, declared = Lake.at(setting.lake), setting.declarations
    try:
        lake.require()
        list_runs(lake)
        view_streams(lake, declared, stream_names(lake, declared))
        view_coverages(lake, declared, list(declared.replays))
    except CapstanError:
        # The page reads it itself, and tells what is wrong to the one who asks.
        return
