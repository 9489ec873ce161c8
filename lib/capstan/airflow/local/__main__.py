"""`python -m capstan.airflow.local`: runs a local Airflow until Ctrl-C."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from capstan.core.environment import lake_of
from capstan.core.program_arguments import ArgumentParser
from capstan.errors import CapstanError, SystemFailureError
from capstan.spark.project_home import cache_folder, packages, project_home

if TYPE_CHECKING:
    from capstan.airflow.local.launcher import Launcher


def main(arguments: Sequence[str] | None = None) -> int:
    """Run Airflow until a signal stops it, and return the exit code of the process."""
    try:
        launcher = _launcher(arguments)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _stopper(launcher))
        launcher.run()
    except CapstanError as error:
        print(f"{error}\n  {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def _launcher(arguments: Sequence[str] | None) -> Launcher:
    cache = cache_folder() / "airflow"
    parser = ArgumentParser(
        prog="python -m capstan.airflow.local", description=__doc__, allow_abbrev=False
    )
    option = parser.add_argument
    option("--port", type=int, default=8080, help="the port of the UI; 0 for a free one (8080)")
    option("--lake", help="the lake: a folder or a URI (./lake)")
    help_text = "the folder of Airflow's database, passwords and logs (.cache/airflow)"
    option("--home", type=Path, default=cache, help=help_text)
    dags = project_home() / "dags"
    option("--dags", type=Path, default=dags, help="the folder of the DAG files (dags)")
    option("--database", metavar="URL", help="your own PostgreSQL, instead of the launcher's")
    given = parser.parse_args(arguments)
    lake = lake_of(given.lake)
    if importlib.util.find_spec("airflow") is None:
        raise SystemFailureError("CAP-AIRFLOW", "Airflow is not installed", packages("airflow"))
    # They need psutil, which comes with Airflow.
    from capstan.airflow.local.home import Home
    from capstan.airflow.local.launcher import Launcher
    from capstan.airflow.local.settings import Setup

    home = Home(given.home.resolve())
    return Launcher(Setup(home, given.port, given.dags.absolute(), lake, given.database), _say)


def _stopper(launcher: Launcher) -> signal._HANDLER:
    def stop(_number: int, _frame: FrameType | None) -> None:
        # A second signal means: do not wait.
        if launcher.stopping.is_set():
            launcher.hurry.set()
        launcher.stopping.set()

    return stop


def _say(line: str) -> None:
    # When the terminal is closed, the processes must be stopped nevertheless.
    with suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
