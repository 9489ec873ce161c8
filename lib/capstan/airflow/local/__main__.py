"""`python -m capstan.airflow.local`: starts Airflow, says where to look, ends it with Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from capstan.airflow.local.launcher import Launcher, Wanted
from capstan.errors import CapstanError, InvalidRequestError
from capstan.spark.project_home import cache_folder, project_home


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequestError("CAP-USAGE", message, f"see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch what the arguments ask for, until a signal ends it; the exit code of the process."""
    try:
        launcher = Launcher(_wanted(arguments), _say)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stopper(launcher))
        launcher.run()
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def _wanted(arguments: Sequence[str] | None) -> Wanted:
    parser = _Parser(
        prog="python -m capstan.airflow.local", description=__doc__, allow_abbrev=False
    )
    lake = os.environ.get("CAPSTAN_LAKE") or "./lake"
    parser.add_argument("--port", type=int, default=8080, help="of the UI; 0 for a free one (8080)")
    parser.add_argument("--lake", default=lake, help="the lake: a folder or a URI (./lake)")
    parser.add_argument(
        "--home",
        type=Path,
        default=cache_folder() / "airflow",
        help="where Airflow keeps its database, passwords and logs (.cache/airflow)",
    )
    parser.add_argument(
        "--dags",
        type=Path,
        default=project_home() / "dags",
        help="the folder of the DAG files (dags)",
    )
    parser.add_argument(
        "--database", metavar="URL", help="a PostgreSQL of yours, instead of the launcher's own"
    )
    given = parser.parse_args(arguments)
    return Wanted(given.home, given.port, given.dags, given.lake, given.database)


def _stopper(launcher: Launcher) -> signal._HANDLER:
    def stop(_number: int, _frame: FrameType | None) -> None:
        # Who asks twice does not want to wait.
        if launcher.stopping.is_set():
            launcher.hurry.set()
        launcher.stopping.set()

    return stop


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:
        # Who started it has closed the terminal; what runs is to be ended all the same.
        return


if __name__ == "__main__":
    sys.exit(main())
