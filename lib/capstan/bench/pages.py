"""How long the overview takes to load: ten streams, and a million events on their tapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

from capstan.bench.inputs import Bench
from capstan.bench.lines import Line
from capstan.declare import Declarations
from capstan.tape.lake import Lake
from capstan.testing.recorded import Recorded
from capstan.views.rendering import render
from capstan.views.runs import list_runs
from capstan.views.streams import StreamView, stream_names, view_streams

GOAL: Final = 1.0
"""Seconds."""

_STREAMS, _WORKERS, _COMMITS, _EVENTS = 10, 5, 50, 1_000_000
_NOTHING: Final = Declarations(Path("streams.yaml"), {}, {}, {}, {})


def pages(bench: Bench) -> list[Line]:
    """The lines `page, first` and `page, again`: seconds until the overview is rendered.

    `first` reads every tape, as after a start of the server; `again` finds that no table has
    changed. What a login and a browser cost on top is not in them.
    """
    folder = bench.place("pages")
    pairs = _EVENTS // (_STREAMS * _WORKERS * _COMMITS * 2)
    bench.say(f"laying down {_STREAMS} tapes")
    for number in range(_STREAMS):
        labels = [f"worker {n}" for n in range(_WORKERS)]
        recorded = Recorded(
            f"stream_{number}", labels, _COMMITS, pairs, timedelta(minutes=1), {1: 3}, {"late": 50}
        )
        recorded.lay(Lake.at(folder / "lake"))
    first, again, events = [], [], 0
    for number in range(bench.options.rounds + 1):
        # What was read is kept by the lake's place: another name of it is a lake never seen.
        place = folder / f"lake-{number}"
        place.symlink_to(folder / "lake", target_is_directory=True)
        lake = Lake.at(place)
        first.append(_seconds(lambda lake=lake: overview(lake)))  # type: ignore[misc]
        again.append(_seconds(lambda lake=lake: overview(lake)))  # type: ignore[misc]
        events = sum(
            view.progress.events
            for view in view_streams(lake, _NOTHING, stream_names(lake, _NOTHING))
            if isinstance(view, StreamView)
        )
        bench.say(f"the overview: {first[-1]:.2f} s, again {again[-1]:.3f} s")
    detail = {"streams": _STREAMS, "events": events, "files": _STREAMS * _COMMITS}
    # The first round rehearses: it imports what the others have.
    return [
        Line("page, first", "", median(first[1:]), GOAL, "s", None, tuple(first[1:]), detail),
        Line("page, again", "", median(again[1:]), GOAL, "s", None, tuple(again[1:]), detail),
    ]


def overview(lake: Lake) -> str:
    """The overview of a lake, as the plugin renders it for one who may see all of it."""
    return render(
        "overview.html",
        base="/capstan",
        airflow="",
        here="/",
        lake=lake.root,
        problems=[],
        streams=view_streams(lake, _NOTHING, stream_names(lake, _NOTHING)),
        replays=[],
        runs=list_runs(lake),
        more=0,
    )


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
