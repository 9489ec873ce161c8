"""How long the overview takes to load: ten long tapes, or a hundred short ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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

_NOTHING: Final = Declarations(Path("streams.yaml"), {}, {}, {}, {})


@dataclass(frozen=True, slots=True)
class _Lake:
    """A lake to be shown.

    Attributes:
        name: What its lines are called.
        streams: How many tapes it has.
        workers: Of each.
        commits: Of each; so many files has its index.
        pairs: Pairs of events of each worker in each commit.
    """

    name: str
    streams: int
    workers: int
    commits: int
    pairs: int

    def lay(self, folder: Path) -> None:
        """Write its tapes."""
        labels = [f"worker {n}" for n in range(self.workers)]
        for number in range(self.streams):
            name, step = f"stream_{number}", timedelta(minutes=1)
            Recorded(name, labels, self.commits, self.pairs, step, {1: 3}, {"late": 50}).lay(
                Lake.at(folder)
            )


_LAKES: Final = (
    # A million events.
    _Lake("page", 10, 5, 50, 200),
    _Lake("page of 100 streams", 100, 3, 10, 10),
)


def pages(bench: Bench) -> list[Line]:
    """The lines `page, first` and `page, again`, and those of 100 streams.

    Seconds until the overview is rendered: `first` reads every tape, as after a start of the
    server; `again` finds that no table has changed. What a login and a browser cost on top is not
    in them.
    """
    return [line for lake in _LAKES for line in _measured(bench, lake)]


def _measured(bench: Bench, shown: _Lake) -> list[Line]:
    folder = bench.place(shown.name.replace(" ", "-"))
    bench.say(f"laying down {shown.streams} tapes")
    shown.lay(folder / "lake")
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
    detail = {"streams": shown.streams, "events": events, "files": shown.streams * shown.commits}
    # The first round rehearses: it imports what the others have.
    return [
        Line(f"{shown.name}, {when}", "", median(of[1:]), GOAL, "s", None, tuple(of[1:]), detail)
        for when, of in (("first", first), ("again", again))
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
