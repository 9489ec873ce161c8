"""Shared set-up of all tests: printed seeds, Hypothesis without deadlines, marks by folder.

`CAPSTAN_TEST_UNTIL`, in seconds since 1970, is the time from which on no further case (of the mark
`rest`) begins; those that are left out are counted as skipped. `CAPSTAN_TEST_TURN`, such as a
date, chooses the order of the files with further cases, so that each gets its turn on slow
machines.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from random import SystemRandom

import pytest
from hypothesis import settings

_HERE = Path(__file__).parent
# Programs started by tests import `tests.support` as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(_HERE.parent), os.environ.get("PYTHONPATH")))
)
_MARKS = {
    "spark": pytest.mark.spark,
    "crash": pytest.mark.crash,
    "dags": pytest.mark.dags,
    "web": pytest.mark.web,
    "bench": pytest.mark.bench,
}
# The longest tests come first, so that none of them is left for the end.
_LONGEST_FIRST = ("web", "spark-0", "spark-3", "spark-2", "spark-1", "crash")
# The files of tests/spark from each of these on may run in another process, with its own session.
# A session takes some 25 CPU seconds to start and to get warm: the few core tests share fewer.
_CORE_PARTS = ("test_cli", "test_recapture")
_PARTS = ("test_damage", "test_nexmark", "test_replay_piped")
_UNTIL = float(os.environ.get("CAPSTAN_TEST_UNTIL") or "inf")
_TURN = os.environ.get("CAPSTAN_TEST_TURN", "")

# No deadline: shared cores stall for longer than any example should take.
settings.register_profile("ci", deadline=None, print_blob=True)
settings.register_profile("quick", deadline=None, print_blob=True, max_examples=15)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Chosen here, so that the header shows it; all processes of a run have the same one.
os.environ.setdefault("CAPSTAN_STATE_SEED", str(SystemRandom().randrange(2**32)))


def unpack(folder: Path) -> None:
    """Unpack large recordings beside their archives, where tests find them."""
    for packed in folder.rglob("*.gz"):
        path = packed.with_suffix("")
        if not path.exists() or path.stat().st_mtime < packed.stat().st_mtime:
            # Several processes may do this at once, and none may see a partial file.
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            unfinished.write_bytes(gzip.decompress(packed.read_bytes()))
            unfinished.replace(path)


unpack(_HERE / "conformance")


def pytest_report_header(config: pytest.Config) -> str:
    """The seeds of this run: both together reproduce the order and the examples."""
    hashing = os.environ.get("PYTHONHASHSEED", "random")
    given = config.getoption("--hypothesis-seed", default=None)
    rescales = os.environ["CAPSTAN_STATE_SEED"]
    return (
        f"seeds: PYTHONHASHSEED={hashing}, --hypothesis-seed={given or 'random'}, "
        f"CAPSTAN_STATE_SEED={rescales}"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last line says what was not tried, and why."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(each[2].removeprefix("Skipped: ") for each in skipped if len(each) == 3)
    if reasons:
        listed = "; ".join(f"{count} because {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"Not tried, of the tests: {listed}.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and start with those that take longest."""
    for item in items:
        folder = _folder(item)
        if folder in _MARKS:
            item.add_marker(_MARKS[folder])
    order, parts = {group: place for place, group in enumerate(_LONGEST_FIRST)}, _parts(config)

    def turn(item: pytest.Item) -> tuple[int, str]:
        group = _together(_folder(item), item.path.name, parts)
        by_turn = hashlib.sha256(f"{_TURN} {item.path.name}".encode()).hexdigest()
        return order.get(group, len(order)), by_turn if _TURN else ""

    items.sort(key=turn)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a further case when the time for these is over."""
    if time.time() > _UNTIL and item.get_closest_marker("rest") is not None:
        pytest.skip("no time left for further cases; `make test-all` runs them all")


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_HERE).parts[0]


def _parts(config: pytest.Config) -> tuple[str, ...]:
    return _CORE_PARTS if "not rest" in config.option.markexpr else _PARTS


def _together(folder: str, file: str, parts: tuple[str, ...]) -> str:
    """The costly fixture that a file's tests share with others: a Spark session, an Airflow."""
    if folder in ("dags", "spark"):
        return f"spark-{bisect_right(parts, file) if folder == 'spark' else 0}"
    return folder if folder in _MARKS else f"{folder}/{file}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute tests so that those with the same costly fixture run in the same process.

    The marks of pytest-xdist 3.8 would do that, but do not work with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            _, folder, *file = nodeid.split("::", maxsplit=1)[0].split("/")
            return _together(folder, "/".join(file), _parts(config))

    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None
