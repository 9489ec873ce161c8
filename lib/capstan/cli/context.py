"""The context of a command: lake, declarations, output, Spark session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import typer

from capstan.cli.output import Output
from capstan.cli.progress import Watch, Work, watching
from capstan.core.config import ProjectConfig, load_optional

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.spark.session import Later
    from capstan.storage.lake import Lake

DEFAULT_LAKE = "./lake"


@dataclass(slots=True)
class Shell:
    """The options that all commands share.

    Attributes:
        output: The output of answers and errors.
        place: The lake, as given on the command line.
        streams: The declaration file, if one was named.
        debug: Whether errors show a traceback.
    """

    output: Output
    place: str = DEFAULT_LAKE
    streams: str | None = None
    debug: bool = False

    @property
    def lake(self) -> Lake:
        """The lake, which may not exist."""
        from capstan.storage.lake import Lake

        return Lake.at(self.place)

    def declarations(self, *, required: bool = False) -> ProjectConfig:
        """The declarations; empty when no file was named and the default one does not exist.

        Faulty entries are left out with a note on standard error; a request for one fails.

        Args:
            required: Whether the file must exist.

        Raises:
            InvalidRequestError: `CAP-DECLARE` when the file cannot be read.
        """
        declared = load_optional(self.streams, lake=self.lake.root, required=required)
        for mistake in () if self.output.as_json else declared.mistakes:
            self.output.note(f"left out: {mistake.error}")
        return declared

    @contextmanager
    def spark(self, work: Work) -> Iterator[SparkSession]:
        """Give some work a Spark session, and show its progress.

        A session started here is stopped afterwards. The work's own prints go to standard error:
        standard output is for the answer.
        """
        with self.later(work) as session:
            yield session()

    @contextmanager
    def later(self, work: Work) -> Iterator[Later]:
        """The same with a session that starts at the first call: the work may not need it."""
        with (
            redirect_stdout(sys.stderr),
            watching(self.output, work) as watch,
            ExitStack() as ended,
        ):

            @cache
            def session() -> SparkSession:
                from capstan.spark.code_archive import add_modules
                from capstan.spark.session import require_safe_commits

                begun = ended.enter_context(started(watch))
                require_safe_commits(begun, self.lake.root)
                add_modules(begun, load_optional(self.streams, lake=self.lake.root).modules)
                return begun

            yield session


@contextmanager
def started(watch: Watch) -> Iterator[SparkSession]:
    """The Spark session of this process; stopped at the end if it was started here."""
    watch.now("starting Spark")
    from pyspark import SparkContext

    from capstan.spark.session import build_session, marked

    ours = SparkContext._active_spark_context is None
    session = build_session("capstan")
    watch.now("")
    try:
        with marked(session):
            yield session
    finally:
        if ours:
            session.stop()


def shell_of(context: typer.Context) -> Shell:
    """The shell of a command's context."""
    shell = context.obj
    assert isinstance(shell, Shell)
    return shell
