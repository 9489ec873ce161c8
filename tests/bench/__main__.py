"""`make bench`: measures, prints the results with their goals, and writes them as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from capstan.errors import CapstanError, InvalidRequestError
from capstan.spark.session import build_session
from tests.bench import report
from tests.bench.airflow_overhead import scheduled
from tests.bench.attach import attached
from tests.bench.backfill import backfills
from tests.bench.capture import captures
from tests.bench.cold_start import cold
from tests.bench.cpu_clock import Clock
from tests.bench.dag_parsing import parsing
from tests.bench.fixed_cost import fixed
from tests.bench.follow import follow
from tests.bench.import_export import moving
from tests.bench.inputs import Bench, Options
from tests.bench.json_look import looks
from tests.bench.keyed_state import states
from tests.bench.maintenance import maintains
from tests.bench.measures import Line
from tests.bench.merge import merges
from tests.bench.page_load import pages
from tests.bench.pipeline import pipelines
from tests.bench.replay import replays
from tests.bench.scaling import scaling
from tests.bench.spark_operators import joins, operators
from tests.bench.state_rescale import rescales
from tests.bench.store_requests import requests
from tests.bench.verify_rate import judging

NAMES = (
    "capture",
    "json",
    "attach",
    "replay",
    "transform",
    "verify",
    "merge",
    "join",
    "operators",
    "fixed",
    "cold",
    "follow",
    "maintain",
    "judge",
    "move",
    "backfill",
    "page",
    "parse",
    "pipeline",
    "state",
    "scale",
    "requests",
    "airflow",
)
_REPLAYS = frozenset({"replay", "transform", "verify"})


def parse(arguments: Sequence[str]) -> tuple[Options, Path, Path | None]:
    """Parse options, the file to write, and the working folder (None: a temporary one).

    Raises:
        InvalidRequestError: `CAP-BENCH` for numbers with which nothing can be measured.
    """
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument(
        "--rows", default="1000000,3000000", help="the two sizes; 10000000,50000000 for a full run"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side")
    parser.add_argument(
        "--longer",
        type=int,
        default=10,
        help="length of the longer tape as a multiple; 100 for a full run",
    )
    parser.add_argument(
        "--only", action="append", choices=NAMES, default=[], help="only this line; repeatable"
    )
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parser.add_argument("--output", type=Path, default=Path(f"bench-{today}.json"))
    parser.add_argument("--workdir", type=Path, default=None, help="a new folder, which is kept")
    given = parser.parse_args(arguments)
    try:
        small, large = (int(text) for text in given.rows.split(","))
    except ValueError:
        small = large = 0
    if not 0 < small < large or given.rounds < 1 or given.longer < 2:
        raise InvalidRequestError(
            "CAP-BENCH",
            f"cannot measure with --rows {given.rows}, --rounds {given.rounds} and "
            f"--longer {given.longer}",
            "give two sizes in ascending order, at least 1 round, and a factor of at least 2",
        )
    if given.workdir is not None and given.workdir.exists():
        raise InvalidRequestError(
            "CAP-BENCH", f"{given.workdir} already exists", "name a new folder"
        )
    options = Options(small, large, given.rounds, given.longer, frozenset(given.only))
    return options, given.output, given.workdir


def measured(bench: Bench) -> Iterator[list[Line]]:
    """The selected results, part by part."""
    expected = bench.options.only or frozenset(NAMES)
    parts: list[tuple[frozenset[str], Callable[[], list[Line]]]] = [
        (frozenset({"capture"}), lambda: captures(bench)),
        (frozenset({"json"}), lambda: looks(bench)),
        (frozenset({"attach"}), lambda: attached(bench)),
        (_REPLAYS, lambda: replays(bench, expected)),
        (frozenset({"merge"}), lambda: merges(bench)),
        (frozenset({"join"}), lambda: joins(bench)),
        (frozenset({"operators"}), lambda: operators(bench)),
        (frozenset({"fixed"}), lambda: fixed(bench)),
        (frozenset({"cold"}), lambda: cold(bench)),
        (frozenset({"follow"}), lambda: follow(bench)),
        (frozenset({"maintain"}), lambda: maintains(bench)),
        (frozenset({"judge"}), lambda: judging(bench)),
        (frozenset({"move"}), lambda: moving(bench)),
        (frozenset({"backfill"}), lambda: backfills(bench)),
        (frozenset({"page"}), lambda: pages(bench)),
        (frozenset({"parse"}), lambda: parsing(bench)),
        (frozenset({"pipeline"}), lambda: pipelines(bench)),
        (frozenset({"state"}), lambda: [*states(bench), *rescales(bench)]),
        (frozenset({"scale"}), lambda: scaling(bench)),
        (frozenset({"requests"}), lambda: requests(bench)),
        (frozenset({"airflow"}), lambda: scheduled(bench)),
    ]
    return (part() for names, part in parts if names & expected)


def run(options: Options, output: Path, folder: Path) -> None:
    """Measure in `folder`, print, and write `output`."""
    started, notes = time.monotonic(), Console(stderr=True, highlight=False, markup=False)

    def say(text: str) -> None:
        notes.print(f"{time.monotonic() - started:7.1f} s  {text}", soft_wrap=True)

    before = report.machine()
    say("starting Spark")
    spark = build_session("capstan-bench")
    try:
        bench = Bench(spark, Clock.of(spark), folder, options, say)
        lines: list[Line] = []
        for part in measured(bench):
            lines += part
            # After each part, so that a failing part does not lose earlier results.
            document = report.to_json(bench, lines, before, time.monotonic() - started)
            report.write(output, json.dumps(document, indent=1))
    finally:
        spark.stop()
    answers = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    for table in (report.costs(lines), report.table(lines)):
        if table.row_count:
            answers.print(table)
    answers.print(
        "Results are slopes between the two sizes, in CPU seconds of this run's processes; "
        f"whole runs are of the larger size. All data is in {output}.",
        soft_wrap=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code of the process."""
    try:
        options, output, kept = parse(sys.argv[1:] if arguments is None else arguments)
        folder = Path(tempfile.mkdtemp(prefix="capstan-bench-")) if kept is None else kept
        try:
            run(options, output.absolute(), folder.absolute())
        finally:
            if kept is None:
                shutil.rmtree(folder, ignore_errors=True)
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
