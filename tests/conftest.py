"""What all tests share: seeds that are printed, hypothesis without deadlines, marks by folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

_HERE = Path(__file__).parent
_MARKS = {
    "spark": pytest.mark.spark,
    "crash": pytest.mark.crash,
    "dags": pytest.mark.dags,
    "web": pytest.mark.web,
    "bench": pytest.mark.bench,
}

# No deadline: machines that share their cores stall for longer than any example should take.
settings.register_profile("ci", deadline=None, print_blob=True)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_report_header(config: pytest.Config) -> str:
    """The seeds of this run: with both, the same order and the same examples come again."""
    hashing = os.environ.get("PYTHONHASHSEED", "random")
    given = config.getoption("--hypothesis-seed", default=None)
    return f"seeds: PYTHONHASHSEED={hashing}, --hypothesis-seed={given or 'random'}"


# First, as pytest-xdist has a hook of its own here, which looks for the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the folder they lie in; under pytest-xdist each group has one process."""
    for item in items:
        folder = item.path.relative_to(_HERE).parts[0]
        if folder in _MARKS:
            item.add_marker(_MARKS[folder])
            item.add_marker(pytest.mark.xdist_group(folder))
