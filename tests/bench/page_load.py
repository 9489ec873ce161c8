"""Load time of the overview: ten long tapes, or a hundred short ones, each with replays."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from capstan.core.config import ProjectConfig, Replay
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting.attention.gather import list_attention
from capstan.reporting.coverage_view import view_coverages
from capstan.reporting.html import render
from capstan.reporting.run_heads import read_heads
from capstan.reporting.run_view import list_runs
from capstan.reporting.stream_view import stream_names, view_streams
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from tests.bench.inputs import Bench
from tests.bench.measures import Line
from tests.support.jvmless_lake import Books
from tests.support.recorded_tapes import START, Recorded

_DAYS: Final = 7
_DAY_US: Final = 86_400_000_000
_NEWEST: Final = 10
_RUNS: Final = 3
"""Runs of each declared replay."""


@dataclass(frozen=True, slots=True)
class _Lake:
    """A lake to show.

    Attributes:
        name: Prefix of its results.
        streams: Number of tapes.
        workers: Workers of each tape.
        commits: Commits of each tape, and files of its index.
        pairs: Pairs of events per worker and commit.
        replays: Number of streams with a declared replay, of which three days were run.
        goal: Goal in CPU seconds for the first look of a process.
    """

    name: str
    streams: int
    workers: int
    commits: int
    pairs: int
    replays: int
    goal: float

    def lay(self, folder: Path) -> None:
        """Write its tapes, and the ledgers of the replays of some of them."""
        labels = [f"worker {n}" for n in range(self.workers)]
        lake, step = Lake.at(folder), timedelta(minutes=1)
        for number in range(self.streams):
            name = f"stream_{number}"
            Recorded(name, labels, self.commits, self.pairs, step, {1: 3}, {"late": 50}).lay(lake)
        workers, begin = list(range(self.workers)), int(START.timestamp()) * 1_000_000
        books = Books(lake, "", "")
        for number in range(self.replays):
            books.stream, books.target = f"stream_{number}", lake.table(f"table_{number}")
            for run in range(_RUNS):
                since = begin + run * _DAY_US
                box = Box((since,), (since + _DAY_US,))
                books.published(f"table_{number}-{number:08x}-{run + 1}", workers, Region(box))

    def declared(self) -> ProjectConfig:
        """A daily replay of each of its first streams."""
        actual = {
            f"replay_{number}": Replay(
                name=f"replay_{number}",
                stream=f"stream_{number}",
                target=f"table_{number}",
                since=START,
                until=START + _DAYS * timedelta(days=1),
                schedule="@daily",
            )
            for number in range(self.replays)
        }
        return ProjectConfig(Path("streams.yaml"), {}, {}, {}, actual)


_LAKES: Final = (
    # A million events.
    _Lake("page", 10, 5, 50, 200, 10, 0.4),
    _Lake("page of 100 streams", 100, 3, 10, 10, 10, 0.8),
)
_REHEARSAL: Final = _Lake("rehearsal", 1, 1, 2, 1, 1, 0.0)


def pages(bench: Bench) -> list[Line]:
    """The results `page, first`, `page, next process` and `page, again`, also for 100 streams.

    CPU seconds until the overview is rendered, with the coverage of the declared replays and the
    runs. `first` reads every tape and ledger; `next process` is another process, which finds what
    that one has kept on disk; `again` finds no table changed. Login and browser are not included.
    """
    return [line for lake in _LAKES for line in _measured(bench, lake)]


def _measured(bench: Bench, shown: _Lake) -> list[Line]:
    folder = bench.place(shown.name.replace(" ", "-"))
    bench.say(f"laying down {shown.streams} tapes")
    shown.lay(folder / "lake")
    _REHEARSAL.lay(folder / "rehearsal")
    looks: dict[str, list[float]] = {"first": [], "next process": [], "again": []}
    for number in range(bench.options.rounds):
        first, _ = _looks(shown, folder, f"kept-{number}")
        following, again = _looks(shown, folder, f"kept-{number}")
        for when, seconds in zip(looks, (first, following, again), strict=True):
            looks[when].append(seconds)
        bench.say(f"the overview: {first:.2f}, {following:.2f}, again {again:.3f} CPU s")
    detail = {
        "streams": shown.streams,
        "events": shown.streams * shown.commits * shown.workers * shown.pairs * 2,
        "files": shown.streams * shown.commits,
        "replays": shown.replays,
        "runs": shown.replays * _RUNS,
    }
    return [
        Line(f"{shown.name}, {when}", "", median(of), shown.goal, "CPU s", None, tuple(of), detail)
        for when, of in looks.items()
    ]


def _looks(shown: _Lake, folder: Path, kept: str) -> tuple[float, float]:
    """CPU seconds of the first and second look of a process that keeps what it reads."""
    program = [sys.executable, "-m", __name__, shown.name, str(folder), kept]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    first, again = map(float, ended.stdout.split())
    return first, again


def main(name: str, folder: Path, kept: str) -> None:
    """Print the CPU seconds of two looks at a lake, after one at another, which imports modules."""
    table_cache.enable(folder / "rehearsed")
    overview(Lake.at(folder / "rehearsal"), _REHEARSAL.declared())
    table_cache.enable(folder / kept)
    [shown] = [lake for lake in _LAKES if lake.name == name]
    load = partial(overview, Lake.at(folder / "lake"), shown.declared())
    print(_seconds(load), _seconds(load))


def overview(lake: Lake, declared: ProjectConfig) -> str:
    """The overview of a lake, as the plugin renders it for a user who may see everything."""
    runs, heads = list_runs(lake), read_heads(lake)
    streams = view_streams(lake, declared, stream_names(lake, declared))
    replays = view_coverages(lake, declared, list(declared.replays))
    return render(
        "overview.html",
        base="/capstan",
        airflow="",
        here="/",
        lake=lake.root,
        problems=[],
        attention=list_attention(lake, declared, streams, replays, heads),
        may_fill=True,
        streams=streams,
        replays=replays,
        runs=runs[:_NEWEST],
        more=len(runs),
        places={},
    )


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
