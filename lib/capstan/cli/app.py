"""Entry point of `capstan`: global options, the table of commands, error reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated

import typer

from capstan.cli.commands import (
    audit,
    backfill,
    capture,
    check,
    exchange,
    explain,
    late,
    maintain,
    replay,
    setup,
    show,
    state,
)
from capstan.cli.context import Shell, shell_of
from capstan.cli.output import CommandOutput
from capstan.core.environment import DEFAULT_LAKE
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError, translation
from capstan.errors.redaction import print_exception
from capstan.telemetry.structured_logging import Log, logging, owns_standard_error

# The exit code that Typer gives an interrupt.
_INTERRUPTED = 130
_FLAGS = ("--json", "--debug")
_VALUED = ("--lake", "--config")
# Former names of options, which are still taken.
_FORMER = {"--streams": "--config"}
# A former option of replays, which has no effect.
_DROPPED = "--direct"

_HELP = """Records the output of streams, verifies the recordings, and replays any part of them.

Exit codes: 0 done; 1 a check failed; 2 the request is wrong; \
3 not complete yet, or paused; 4 another run holds the range; 5 something broke.
"""

_MARCH = "--since 2013-03-01 --until 2013-04-01"
# Functions by command name, each with the arguments of an example.
_COMMANDS: dict[str, tuple[Callable[..., int], str]] = {
    "init": (setup.init, "orders-project --airflow ~/airflow/dags"),
    "setup": (setup.setup, "kafka"),
    "demo": (setup.demo, ""),
    "doctor": (setup.doctor, "--deep"),
    "status": (show.status, ""),
    "streams": (show.streams, ""),
    "show": (show.show, "flights --as-of 12"),
    "capture": (capture.capture, "flights"),
    "late": (late.late, "flights --put-back"),
    "close": (capture.close, "flights"),
    "import": (exchange.import_, "clicks recordings/ --format timely"),
    "export": (exchange.export, "flights recordings/ --format jsonl"),
    "listen": (exchange.listen, "clicks --port 8000 --workers 5 --time-type u64 --record-type u64"),
    "serve": (exchange.serve, "clicks --to 127.0.0.1:8000 --peers 3"),
    "check": (check.check, "recording/worker-0.jsonl --minimum 0"),
    "explain": (explain.explain, "late_carriers --mermaid"),
    "verify": (capture.verify, "flights --workers EWR,2 --deep"),
    "plan": (replay.plan, f"flights --into march {_MARCH}"),
    "replay": (replay.replay, f"flights --into march --workers EWR,LGA {_MARCH}"),
    "audit": (
        audit.audit,
        "flights --against /data/departures --worker-column origin --time-column sched_dep",
    ),
    "publish": (replay.publish, "march-3f2a9c1b-1"),
    "reject": (replay.reject, "march-3f2a9c1b-1 --reason 'the wrong month'"),
    "rollback": (replay.rollback, "march-3f2a9c1b-1"),
    "unlock": (replay.unlock, "march-3f2a9c1b-1"),
    "staging": (maintain.staging, "--clean --keep '7 days'"),
    "state": (state.state, "late_carriers rescale 4"),
    "maintain": (maintain.maintain, "--all"),
    "retire": (maintain.retire, "flights --before 2013-02-01 --plan"),
    "runs": (show.runs, "--target march --limit 5"),
    "metrics": (show.metrics, "-o /var/lib/node_exporter/capstan.prom"),
    "report": (show.report, "march-3f2a9c1b-1 -o march.html"),
    "gaps": (backfill.gaps, "flights_by_day --every '7 days'"),
    "backfill": (backfill.backfill, "flights_by_day --since 2013-03-01 --chunk 7"),
}

app = typer.Typer(
    name="capstan", add_completion=False, pretty_exceptions_enable=False, help=_HELP,
    epilog="These options can also come after the command.", rich_markup_mode="rich",
)  # fmt: skip
for _name, (_function, _example) in _COMMANDS.items():
    app.command(_name, epilog=f"Example: capstan {_name} {_example}".rstrip())(_function)


@app.callback()
def shared(
    context: typer.Context,
    lake: Annotated[
        str | None,
        typer.Option(
            envvar="CAPSTAN_LAKE", help="The lake: a folder or an object-store URI.",
            metavar="PLACE", show_default=DEFAULT_LAKE,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            envvar="CAPSTAN_CONFIG", metavar="FILE",
            help="The declaration file; by default dags/streams.yaml here or in the project.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to standard output.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:  # fmt: skip
    """Store the options that all commands share."""
    shell = shell_of(context)
    assert shell.output.as_json == as_json
    shell.place, shell.config, shell.debug = lake, config, debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    words = list(hoisted(sys.argv[1:] if arguments is None else arguments))
    flags = tuple(takewhile(_FLAGS.__contains__, words))
    shell = Shell(CommandOutput.of(as_json="--json" in flags), debug="--debug" in flags)
    try:
        with logging() as log:
            return _run(words, shell, log)
    except InvalidRequestError as error:
        # An error in the log's settings: all others are reported inside.
        return _failed(shell, error)


def _run(words: Sequence[str], shell: Shell, log: Log | None) -> int:
    try:
        code = app(words or ["--help"], prog_name="capstan", standalone_mode=False, obj=shell)
    except BaseException as error:
        if not translation.is_failure(error):
            raise
        return _failed(shell, error, log)
    if code == _INTERRUPTED:
        shell.output.error(_interrupted().to_json())
    return int(code or 0)


def hoisted(words: Sequence[str]) -> Iterator[str]:
    """Move the shared options to the front, flags first."""
    flags: list[str] = []
    valued: list[str] = []
    rest: list[str] = []
    pending = list(words)
    while pending:
        name, equals, value = pending.pop(0).partition("=")
        word = f"{_FORMER.get(name, name)}{equals}{value}"
        if word == "--":
            rest += [word, *pending]
            break
        if word in _FLAGS:
            flags.append(word)
        elif word == _DROPPED:
            continue
        elif word.startswith(tuple(f"{name}=" for name in _VALUED)):
            valued.append(word)
        elif word in _VALUED and pending and not pending[0].startswith("--"):
            valued += [word, pending.pop(0)]
        else:
            rest.append(word)
    yield from (*flags, *valued, *rest)


def _failed(shell: Shell, error: BaseException, log: Log | None = None) -> int:
    """Report an error and return its exit code."""
    if shell.debug:
        print_exception(error)
    reported = _wrapped(error)
    if log is not None:
        log.failed(reported)
    if log is None or shell.output.as_json or not owns_standard_error():
        shell.output.error(reported.to_json())
    return reported.exit_code


def _wrapped(error: BaseException) -> CapstanError:
    if isinstance(error, typer.TyperException):
        command = getattr(getattr(error, "ctx", None), "command_path", "capstan")
        return InvalidRequestError("CAP-USAGE", error.format_message(), f"see `{command} --help`")
    return translation.to_capstan_error(
        error, "--debug shows the traceback; `capstan doctor` checks the installation"
    )


def _interrupted() -> CapstanError:
    return SystemFailureError(
        "CAP-INTERRUPTED", "interrupted", "run the same command again to continue"
    )
