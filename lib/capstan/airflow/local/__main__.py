"""`python -m capstan.airflow.local`: runs a local Airflow until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from capstan.airflow.local.launcher import Launcher, LaunchOptions
from capstan.core.environment import lake_of
from capstan.errors import CapstanError, InvalidRequestError
from capstan.spark.project_home import cache_folder, project_home


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequestError("CAP-USAGE", message, f"see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run Airflow until a signal stops it, and return the exit code of the process."""
    try:
        launcher = Launcher(_options(arguments), _say)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stopper(launcher))
        launcher.run()
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def _options(arguments: Sequence[str] | None) -> LaunchOptions:
    parser = _Parser(
        prog="python -m capstan.airflow.local", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="the port of the UI; 0 for a free one (8080)"
    )
    parser.add_argument("--lake", help="the lake: a folder or a URI (./lake)")
    parser.add_argument(
        "--home",
        type=Path,
        default=cache_folder() / "airflow",
        help="the folder of Airflow's database, passwords and logs (.cache/airflow)",
    )
    parser.add_argument(
        "--dags",
        type=Path,
        default=project_home() / "dags",
        help="the folder of the DAG files (dags)",
    )
    parser.add_argument(
        "--database", metavar="URL", help="your own PostgreSQL, instead of the launcher's"
    )
    given = parser.parse_args(arguments)
    lake = lake_of(given.lake)
    return LaunchOptions(given.home, given.port, given.dags, lake, given.database)


def _stopper(launcher: Launcher) -> signal._HANDLER:
    def stop(_number: int, _frame: FrameType | None) -> None:
        # A second signal means: do not wait.
        if launcher.stopping.is_set():
            launcher.hurry.set()
        launcher.stopping.set()

    return stop


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:
        # The terminal is closed; the processes must be stopped nevertheless.
        return


if __name__ == "__main__":
    sys.exit(main())
