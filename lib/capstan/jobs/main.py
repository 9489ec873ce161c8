"""The main program of the apps: a JSON request, one call, a result file, an exit code.

An app is started by `spark-submit`, or by Python alone:

    spark-submit .../capstan/jobs/replay.py request.json --lake /data/lake --result result.json
    python -m capstan.jobs.verify --request '{"stream": "flights"}' --result result.json

Invalid requests are refused before a Spark session starts. The result file is written atomically.
If a check failed, it has `error`, `message` and `hint` as well. On an error, the last line of
standard output is its code and message.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from capstan import error_translation
from capstan.context import Context
from capstan.errors import CapstanError, InvalidRequestError
from capstan.jobs.job_types import Handler, JsonObject
from capstan.redaction import print_exception
from capstan.spark.owner_watch import watch_owner
from capstan.spark.project_home import replacing
from capstan.structured_logging import Log, LogFormat, logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequestError("CAP-USAGE", message, f"see `{self.prog} --help`")


def main(
    handler: Handler,
    arguments: Sequence[str] | None = None,
    start: Callable[[str], SparkSession] | None = None,
) -> int:
    """Run one app and return the exit code of the process.

    Args:
        handler: Turns a request into a result, or refuses it without Spark.
        arguments: The arguments after the program's name; those of this process by default.
        start: Builds the Spark session for an app name; `build_session` by default.
    """
    watch_owner()
    try:
        with logging(LogFormat.PLAIN) as log:
            return _run(handler, arguments, start, log)
    except InvalidRequestError as error:
        return _ended(error)


def _run(
    handler: Handler,
    arguments: Sequence[str] | None,
    start: Callable[[str], SparkSession] | None,
    log: Log | None,
) -> int:
    result = None
    try:
        options = _options(handler, arguments)
        result = options.result
        if result is not None:
            # A result that an earlier run left must not pass for this one's.
            result.unlink(missing_ok=True)
        name = f"capstan {handler.__name__}"
        streams = options.streams
        with Context(options.lake, config=streams, spark=lambda: _start(name, start)) as context:
            answer = handler(_request(options), context)
        if result is not None:
            refusal = answer.refusal.summary() if answer.refusal is not None else {}
            _write(result, {**answer.value, **refusal})
    except Exception as error:
        return _failed(error, result, log)
    if answer.refusal is not None:
        return _ended(answer.refusal, log)
    print(f"{name}: done", flush=True)
    return 0


def _options(handler: Handler, arguments: Sequence[str] | None) -> argparse.Namespace:
    summary = (handler.__doc__ or "").splitlines()[0]
    parser = _Parser(prog=f"{handler.__name__}.py", description=summary, allow_abbrev=False)
    parser.add_argument("file", nargs="?", type=Path, help="the request: a JSON file")
    parser.add_argument("--request", help="the request itself, as JSON", metavar="JSON")
    parser.add_argument("--lake", help="the lake: a folder or a URI")
    parser.add_argument("--streams", help="the declaration file", metavar="FILE")
    parser.add_argument("--result", type=Path, help="the result file", metavar="FILE")
    options = parser.parse_args(arguments)
    if (options.file is None) == (options.request is None):
        parser.error("give a request: either a JSON file or --request")
    return options


def _request(options: argparse.Namespace) -> JsonObject:
    source = "--request" if options.file is None else str(options.file)
    try:
        text = options.request if options.file is None else options.file.read_text("utf-8")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "CAP-REQUEST",
            f"{source} is not JSON: {error}",
            "give one JSON object",
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            "CAP-REQUEST", f"{source} is not a JSON object", "give one JSON object"
        )
    return value


def _start(name: str, start: Callable[[str], SparkSession] | None) -> SparkSession:
    from capstan.spark.session import build_session

    return (start or build_session)(name)


def _failed(error: Exception, result: Path | None, log: Log | None) -> int:
    """Report an error, also in the result file, and return its exit code."""
    if not isinstance(error, CapstanError):
        print_exception(error)
    reported = error_translation.to_capstan_error(error)
    if result is not None:
        try:
            _write(result, reported.to_json())
        except OSError as unwritten:
            print(f"{result} cannot be written: {unwritten}", file=sys.stderr, flush=True)
    return _ended(reported, log)


def _ended(error: CapstanError, log: Log | None = None) -> int:
    """Print an error: its hint, then its code and message as the last line."""
    if log is not None:
        log.failed(error)
    sys.stderr.flush()
    if error.hint:
        print(" ".join(error.hint.split()), flush=True)
    print(" ".join(str(error).split()), flush=True)
    return error.exit_code


def _write(path: Path, value: JsonObject) -> None:
    """Write the result file atomically."""
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(value, default=str) + "\n", encoding="utf-8")
