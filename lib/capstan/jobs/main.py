"""The main program of the jobs: a JSON request, one call, a result file, an exit code.

A job is started by `spark-submit`, or by Python alone:

    spark-submit spark_apps/replay.py request.json --lake /data/lake --result result.json
    python -m capstan.jobs verify --request '{"stream": "flights"}' --result result.json
    python -m capstan.jobs replay --attempt NAME --lake s3a://shop/lake

The last form takes the request from the lake, and leaves the result there; see
`capstan.storage.job_attempts`. Invalid requests are refused before a Spark session starts. Results
are written atomically. If a check failed, they have `error`, `message` and `hint` as well. On an
error, the last line of standard output is its code and message.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capstan.api.context import Context
from capstan.api.workplace import Workplace
from capstan.core.config.loading.validation import read_field, read_request
from capstan.core.json_object import Json
from capstan.core.program_arguments import ArgumentParser
from capstan.errors import CapstanError, InvalidRequestError, translation
from capstan.errors.redaction import print_exception
from capstan.jobs import progress
from capstan.jobs.job_result import Handler, JobOutput
from capstan.spark.owner_watch import watch_owner
from capstan.spark.project_home import process_folder
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import read_text
from capstan.storage.ledger.made_by import KEY, MadeBy, making
from capstan.telemetry.structured_logging import Log, LogFormat, logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOOKS_EVERY = 5.0  # Seconds between two looks at another start of the same attempt.


def main(
    handler: Handler,
    arguments: Sequence[str] | None = None,
    start: Callable[[str], SparkSession] | None = None,
) -> int:
    """Run one job and return the exit code of the process; `start` builds its Spark session."""
    watch_owner()
    try:
        with logging(LogFormat.PLAIN) as log, progress.logged(log):
            return _run(handler, arguments, start, log)
    except InvalidRequestError as error:
        return print_error(error)


def _run(
    handler: Handler,
    arguments: Sequence[str] | None,
    start: Callable[[str], SparkSession] | None,
    log: Log | None,
) -> int:
    output = JobOutput(handler.__name__)
    try:
        options = _options(handler, arguments)
        name = f"capstan {handler.__name__}"
        output = replace(output, file=options.result)
        attempt = _attempt(options)
        output = replace(output, attempt=attempt)
        request = dict(_request(options, attempt))
        by = _made_by(request.pop(KEY, None))
        output = replace(output, request=dict(request))
        if options.join and attempt is not None:
            joined = _join(attempt, request)
            if joined is not None:
                return joined
        output.begin()
        config = _config(options, attempt)
        started = Context(options.lake, config=config, spark=lambda: _start(name, start))
        with started as context, making(by), output.at_work():
            result = handler(request, context)
        output.done(result)
    except BaseException as error:
        if not translation.is_failure(error):
            raise
        return _failed(error, output, log)
    if result.refusal is not None:
        return print_error(result.refusal, log)
    print(f"{name}: done", flush=True)
    return 0


def _options(handler: Handler, arguments: Sequence[str] | None) -> argparse.Namespace:
    summary = (handler.__doc__ or "").splitlines()[0]
    parser = ArgumentParser(prog=f"{handler.__name__}.py", description=summary, allow_abbrev=False)
    parser.add_argument("file", nargs="?", help="the request: a JSON file, by path or URI")
    parser.add_argument("--request", help="the request itself, as JSON", metavar="JSON")
    parser.add_argument("--lake", help="the lake: a folder or a URI")
    parser.add_argument("--config", help="the declaration file, by path or URI", metavar="FILE")
    # The former name of --config.
    parser.add_argument("--streams", dest="config", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help="the result file", metavar="FILE")
    parser.add_argument(
        "--attempt",
        help="write the result to jobs/NAME in the lake; without a request, read it from there",
        metavar="NAME",
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="if the attempt is at work already, wait for its end, and end like it",
    )
    options = parser.parse_args(arguments)
    if options.file is not None and options.request is not None:
        parser.error("give one request: either a JSON file or --request")
    if options.join and (options.attempt is None or options.result is not None):
        parser.error("--join needs --attempt, and the result in the lake: leave --result out")
    if options.file is None and options.request is None and options.attempt is None:
        parser.error("give a request: a JSON file, --request, or --attempt with one in the lake")
    return options


def _attempt(options: argparse.Namespace) -> JobAttempt | None:
    if options.attempt is None:
        return None
    return JobAttempt(Workplace(options.lake).lake, options.attempt)


def _join(attempt: JobAttempt, request: Json) -> int | None:
    """The exit code of a start of the attempt that is at work; None without one, or if it died."""
    if attempt.is_at_work(request):
        print(f"attempt {attempt.name} is at work: waiting for its end", flush=True)
    while attempt.is_at_work(request):
        time.sleep(_LOOKS_EVERY)
        outcome = attempt.outcome()
        if outcome is not None:
            error = outcome.error or {}
            said = f"{error.get('error')}: {error.get('message')}" if error else "done"
            print(f"capstan {outcome.verb}, as started before: {said}", flush=True)
            return outcome.exit_code
    return None


def _config(options: argparse.Namespace, attempt: JobAttempt | None) -> str | None:
    """The declaration file: as given, or a local copy of one in the lake or in an object store."""
    given: str | None = options.config
    text = None
    if given is None:
        text = attempt.declarations() if attempt is not None else None
    elif "://" in given:
        text = _text_at(given)
    if text is None:
        return given
    path = process_folder("declarations") / "streams.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _request(options: argparse.Namespace, attempt: JobAttempt | None) -> Json:
    text: str | None
    if options.request is not None:
        source, text = "--request", options.request
    elif options.file is not None:
        source, text = options.file, _text_at(options.file)
    else:
        assert attempt is not None
        source, text = f"the request of attempt {attempt.name}", attempt.request()
        if text is None:
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"attempt {attempt.name} has no request in {attempt.lake.root}",
                "give the request as a file or by --request; or the name and the lake that the "
                "plan has",
            )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "CAP-REQUEST", f"{source} is not JSON: {error}", "give one JSON object"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            "CAP-REQUEST", f"{source} is not a JSON object", "give one JSON object"
        )
    return value


def _made_by(given: object) -> MadeBy | None:
    """Who has the job made, from its request, which may say so whatever the job."""
    if given is None:
        return None
    return read_request(MadeBy, read_field(KEY, dict[str, Any], given))


def _text_at(path: str) -> str:
    try:
        return read_text(path) if "://" in path else Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            "CAP-REQUEST", f"{path} cannot be read: {error}", "name a file that is there"
        ) from error


def _start(name: str, start: Callable[[str], SparkSession] | None) -> SparkSession:
    from capstan.spark.session import build_session

    return (start or build_session)(name)


def _failed(error: BaseException, output: JobOutput, log: Log | None) -> int:
    """Report an error, also in the result, and return its exit code."""
    if not isinstance(error, CapstanError):
        print_exception(error)
    reported = translation.to_capstan_error(error)
    output.failed(reported)
    return print_error(reported, log)


def print_error(error: CapstanError, log: Log | None = None) -> int:
    """Print an error, its code and message as the last line; returns its exit code."""
    if log is not None:
        log.failed(error)
    sys.stderr.flush()
    if error.hint:
        print(" ".join(error.hint.split()), flush=True)
    print(" ".join(str(error).split()), flush=True)
    return error.exit_code
