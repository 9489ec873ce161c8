"""`python -m capstan.jobs JOB ...`: runs a job, which starts Spark itself if it needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from capstan.core.config.names import did_you_mean, one_of
from capstan.errors import InvalidRequestError
from capstan.jobs.handlers import JOBS
from capstan.jobs.main import main, print_error


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names, and return the exit code of the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    name = given[0] if given else ""
    if name in JOBS:
        return main(JOBS[name], given[1:])
    problem = f"there is no job {name}{did_you_mean(name, JOBS)}" if name else "no job is named"
    hint = f"`python -m capstan.jobs JOB --help`; JOB is {one_of(JOBS)}"
    return print_error(InvalidRequestError("CAP-USAGE", problem, hint))


if __name__ == "__main__":
    sys.exit(run())
