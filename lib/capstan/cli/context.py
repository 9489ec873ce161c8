"""The context of a command: lake, declarations, output, Spark session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import typer

from capstan.api.context import Context
from capstan.cli.output import CommandOutput
from capstan.cli.progress import Watch, Work, watching
from capstan.core.config import ProjectConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake


class CommandContext(Context):
    """The lake and declarations of a command, which shows the start of Spark and faulty entries."""

    def __init__(self, place: str | None, config: str | None, output: CommandOutput) -> None:
        super().__init__(place, config=config)
        self.watch: Watch | None = None
        self._output = output
        self._noted = False

    def declared(self, *, required: bool = False) -> ProjectConfig:
        """The declarations; the first reading notes faulty entries, which are left out."""
        declared = super().declared(required=required)
        if not self._noted and not self._output.as_json:
            self._noted = True
            for mistake in declared.mistakes:
                self._output.note(f"left out: {mistake.error}")
        return declared

    @property
    def spark(self) -> SparkSession:
        """The Spark session, whose start is a step of the work."""
        if self.watch is not None and self._session is None:
            self.watch.now("starting Spark")
            session = super().spark
            self.watch.now("")
            return session
        return super().spark


@dataclass
class Shell:
    """The options that all commands share."""

    output: CommandOutput
    place: str | None = None
    config: str | None = None
    debug: bool = False

    @cached_property
    def context(self) -> CommandContext:
        """The lake and declarations, which may not exist."""
        return CommandContext(self.place, self.config, self.output)

    @property
    def lake(self) -> Lake:
        """The lake, which may not exist."""
        return self.context.lake

    def declarations(self, *, required: bool = False) -> ProjectConfig:
        """The declarations, as `Context.declared` reads them."""
        return self.context.declared(required=required)

    @contextmanager
    def working(self, work: Work) -> Iterator[CommandContext]:
        """Show the progress of some work, and stop the Spark session that it starts."""
        # The work's own prints go to standard error: standard output is for the result.
        with redirect_stdout(sys.stderr), watching(self.output, work) as watch, self.context:
            self.context.watch = watch
            yield self.context

    @contextmanager
    def spark(self, work: Work) -> Iterator[SparkSession]:
        """The same for work that takes a Spark session."""
        with self.working(work) as context, context.session() as session:
            yield session


def shell_of(context: typer.Context) -> Shell:
    """The shell of a command's context."""
    shell = context.obj
    assert isinstance(shell, Shell)
    return shell
