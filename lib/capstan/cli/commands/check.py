"""`check`: recordings judged by the pure reference, without a lake and without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.output import table
from capstan.core.protocol import check as judge
from capstan.core.protocol import transcript_minimum
from capstan.core.times import Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    Encoding,
    Frames,
    Lines,
    case_beside,
    open_recording,
    recordings_in,
    types_of,
    worker_of,
)

_BIN = ".bin"
_FIRST_LINE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Given:
    """What the options say of the recordings; None where they say nothing."""

    minimum: object
    time_type: str | None
    record_type: str | None


def check(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Transcripts (.jsonl), timely's files (.bin), or folders of them.",
            metavar="PATH...",
        ),
    ],
    minimum: Annotated[
        str | None,
        typer.Option(
            help="The minimum time as JSON; by default that of case.json beside the file, else "
            "that of the type, else 0.",
            metavar="JSON",
        ),
    ] = None,
    time_type: Annotated[
        str | None,
        typer.Option(
            help="The type of times, such as u64 or Product<u64,u64>; by default that of "
            "case.json. Of a transcript it is looked at only if it is given.",
            metavar="TYPE",
        ),
    ] = None,
    record_type: Annotated[
        str | None,
        typer.Option(
            help="The type of records, such as string or (u64,i64); as with --time-type.",
            metavar="TYPE",
        ),
    ] = None,
) -> int:
    """Judge recordings by the rules, an event a line or timely's bytes; no lake, no JVM."""
    found = None if minimum is None else minimum_of(minimum)
    given = _Given(found, time_type, record_type)
    streams = [_judged(path, given) for path in _files(paths)]
    valid = all(each["valid"] for each in streams)
    shell_of(context).output.answer(
        {"valid": valid, "streams": streams},
        table(
            "", ("file", "worker", "valid", "events", "records", "closed", "violation"),
            [[*(each[k] for k in _SHOWN), _about(each["violation"])] for each in streams],
        ),
        *_tails(streams),
        f"{len(streams)} recordings: " + ("all valid" if valid else "not all are valid"),
    )  # fmt: skip
    return 0 if valid else 1


_SHOWN = ("file", "worker", "valid", "events", "records", "closed")


def _about(violation: object) -> object:
    return violation.get("about") if isinstance(violation, dict) else None


def _tails(streams: Sequence[dict[str, object]]) -> Iterator[str]:
    for each in streams:
        torn = each["torn"]
        if isinstance(torn, dict):
            yield f"{each['file']}: {torn['about']}; what is whole was judged"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise InvalidRequestError(
                "CAP-FILE",
                f"{path} cannot be judged: there is no such file",
                "name .jsonl or .bin files, or folders that hold some",
                file=str(path),
            )
        yield from recordings_in(path) if path.is_dir() else (path,)


def _judged(path: Path, given: _Given) -> dict[str, object]:
    encoding, minimum = _encoding(path, given)
    start = transcript_minimum(minimum)
    with open_recording(path, encoding) as reader:
        verdict = judge(reader.items(), start)
        torn = reader.torn
    time_type = TimeType(tuple(Coordinate.of(f"t{i}", Kind.BIGINT) for i in range(len(start))))
    found = verdict.to_json(time_type)
    if isinstance(minimum, list) and len(minimum) == 1:
        # A list of one coordinate was written so, and is written so again.
        found = {key: _listed(key, value) for key, value in found.items()}
    named = worker_of(path)
    worker = named if named is not None or path.suffix == _BIN else _worker(path)
    tail = None if torn is None else torn.to_json()
    return {"file": str(path), "worker": worker, **found, "torn": tail}


def _encoding(path: Path, given: _Given) -> tuple[Encoding, object]:
    """How a file is read, and its minimum as JSON.

    A transcript that is named after a worker has to be of that one, as for an import; of any
    other the first line says whose it is.
    """
    worker = worker_of(path)
    typed = given.time_type is not None or given.record_type is not None
    if path.suffix == _BIN or typed:
        types = types_of(path, given.time_type, given.record_type, given.minimum)
        frames = path.suffix == _BIN
        return Frames(types) if frames else Lines.of(types, worker), types.minimum_json
    minimum = case_beside(path).get("minimum", 0) if given.minimum is None else given.minimum
    return Lines(minimum, worker=worker), minimum


def _listed(key: str, value: object) -> object:
    if key == "frontier" and isinstance(value, list):
        return [[time] for time in value]
    if key == "holdings" and isinstance(value, list):
        return [[[time], count] for time, count in value]
    if key == "violation" and isinstance(value, dict):
        time = value["time"]
        held = _listed("holdings", value["held"])
        return {**value, "time": None if time is None else [time], "held": held}
    return value


def _worker(path: Path) -> int | None:
    """The worker that the first line of a transcript names, if it names one."""
    with path.open("rb") as lines:
        line = lines.readline(_FIRST_LINE)
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    found = value.get("worker") if isinstance(value, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def minimum_of(text: str) -> object:
    """The value of `--minimum`.

    Raises:
        InvalidRequestError: `CAP-TIME`, it is no JSON.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "CAP-TIME",
            f"--minimum is not JSON: {error}",
            "give an integer, or for nested times a list of integers",
        ) from error
    # None would stand for an option that was not given.
    transcript_minimum(value)
    return value
