"""Output of commands: one JSON object or tables for people; errors in either form; files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from capstan.core.json_object import Json, printed_json
from capstan.errors import CapstanError, InvalidRequestError
from capstan.reporting.formatting import cell_text
from capstan.spark.project_home import replacing

# Wide enough to cut nothing when no terminal sets a width: pipes, files, logs.
_WIDE = 240


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Where answers (standard output) and notes (standard error) go; with `as_json`, as objects."""

    as_json: bool
    results: Console
    notes: Console

    @classmethod
    def of(cls, *, as_json: bool) -> CommandOutput:
        """Create an output to the current standard streams."""
        for stream in (sys.stdout, sys.stderr):
            # Characters that the terminal's encoding lacks are escaped: never an error.
            with suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return cls(as_json, _console(stderr=False), _console(stderr=True))

    def result(self, value: Json, *shown: RenderableType) -> None:
        """Print a result: `value` as JSON, or `shown` for people."""
        try:
            if self.as_json:
                self.results.file.write(printed_json(value) + "\n")
            else:
                for part in shown:
                    self.results.print(part, soft_wrap=isinstance(part, str))
            self.results.file.flush()
        except (BrokenPipeError, SystemExit):
            # The reader has closed the pipe: `capstan runs | head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def checked(
        self,
        value: Json,
        refusal: CapstanError | None,
        *shown: RenderableType,
        errors: Sequence[CapstanError] = (),
    ) -> int:
        """Print a result, the error of a failed check or all `errors`; returns the exit code."""
        failure = {} if refusal is None else refusal.summary()
        self.result({**value, **failure}, *shown)
        if refusal is None:
            return 0
        for error in () if self.as_json else errors or (refusal,):
            self.error(error.to_json())
        return refusal.exit_code

    def note(self, text: str) -> None:
        """Print a line to standard error."""
        self.notes.print(text, soft_wrap=True)

    def error(self, value: Json) -> None:
        """Print an error with the keys `error`, `message` and `hint`."""
        if self.as_json:
            self.result(value)
            return
        self.note(f"{value['error']}: {_one_line(str(value['message']))}")
        if value["hint"]:
            self.note(f"  {_one_line(str(value['hint']))}")


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # No markup: names and values come from data, and `[red]` in one is not a colour.
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if stream.isatty() else _WIDE,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table for people; columns of numbers are right-aligned."""
    listed = [[cell_text(value) for value in row] for row in rows]
    made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, name in enumerate(columns):
        numbers = all(_is_number(row[index]) for row in listed) and bool(listed)
        made.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        made.add_row(*row)
    return made


def row_table(
    title: str, columns: Mapping[str, str | Callable[[Json], object]], rows: Iterable[Json]
) -> Table:
    """A table of rows with keys; each column has a key, or a function of the row."""
    shown = columns.values()
    cells = [[row.get(of) if isinstance(of, str) else of(row) for of in shown] for row in rows]
    return table(title, tuple(columns), cells)


def same(*names: str) -> dict[str, str]:
    """Columns of a `row_table` that have the names of their keys."""
    return dict(zip(names, names, strict=True))


def frontier(row: Json) -> object:
    """The frontier of a row about a stream or a worker."""
    return "closed" if row.get("closed") else row.get("frontier")


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> Table:
    """A table of names and values; empty values are left out."""
    made = Table(
        title=title or None, box=None, show_header=False, title_justify="left", pad_edge=False
    )
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", [], {}):
            made.add_row(name, cell_text(value))
    return made


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace("-", "").isdigit()


def write_file(output: Path, text: str) -> int:
    """Write a file atomically and return its size in bytes."""
    content = text.encode("utf-8")
    try:
        with replacing(output) as unfinished:
            unfinished.write_bytes(content)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            "CAP-OUTPUT",
            f"cannot write {output}: {error}",
            "name a file in an existing folder",
            file=str(output),
        ) from error
    return len(content)
