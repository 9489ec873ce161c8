"""Requests to an object store: those of a micro-batch, and of a run."""

from __future__ import annotations

import os
from collections import Counter

from capstan.storage.lake import Lake
from tests.bench.inputs import Bench
from tests.bench.measures import Line
from tests.support.s3_requests import CountedLake, counted_s3
from tests.support.s3_server import BUCKET, Objects

BATCHES_GOAL, RUNS_GOAL = 120.0, 180.0
# Ten commits are the most between two checkpoints of a table.
_PERIOD = 11


def requests(bench: Bench) -> list[Line]:
    """The results `requests of a micro-batch` and `requests of a run`: the most in a period."""
    folder = bench.folder / "requests"
    folder.mkdir()
    with counted_s3(folder) as proxy:
        server = Objects(proxy.endpoint)
        os.environ.update(server.variables)
        session = bench.spark.newSession()
        for key, value in server.settings.items():
            session.conf.set(key, value)
        work = CountedLake(session, proxy, Lake.at(f"s3a://{BUCKET}/lake"), folder / "source")
        # The first of each creates tables.
        batches = [work.micro_batch() for _ in range(_PERIOD + 1)][1:]
        runs = [work.run(hour) for hour in range(_PERIOD + 1)][1:]
    bench.say(f"requests: {dict(batches[-1])} of a micro-batch, {dict(runs[-1])} of a run")
    return [
        _line("requests of a micro-batch", batches, BATCHES_GOAL),
        _line("requests of a run", runs, RUNS_GOAL),
    ]


def _line(name: str, counted: list[Counter[str]], goal: float) -> Line:
    totals = tuple(float(item.total()) for item in counted)
    most = max(counted, key=Counter.total)
    return Line(name, "", max(totals), goal, "requests", None, totals, {"kinds": dict(most)})
