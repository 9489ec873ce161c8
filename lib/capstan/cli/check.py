"""`check`: transcripts judged by the pure reference, without a lake and without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.output import table
from capstan.cli.shell import shell_of
from capstan.errors import BadRequest
from capstan.protocol import check as judge
from capstan.protocol import read_transcript, transcript_minimum
from capstan.times import Coordinate, Kind, TimeType


def check(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(help="Transcripts, or folders of them.", metavar="PATH...")
    ],
    minimum: Annotated[
        str | None,
        typer.Option(
            help="The minimum time as JSON; by default that of case.json beside the file, else 0.",
            metavar="JSON",
        ),
    ] = None,
) -> int:
    """Judge transcripts (.jsonl, an event a line) by the rules; no lake and no JVM is needed."""
    given = () if minimum is None else (_json(minimum, "--minimum"),)
    streams = [_judged(path, *given) for path in _files(paths)]
    valid = all(each["valid"] for each in streams)
    shell_of(context).output.answer(
        {"valid": valid, "streams": streams},
        table(
            "", ("file", "worker", "valid", "events", "records", "closed", "violation"),
            [[*(each[k] for k in _SHOWN), _about(each["violation"])] for each in streams],
        ),
        f"{len(streams)} transcripts: " + ("all valid" if valid else "not all are valid"),
    )  # fmt: skip
    return 0 if valid else 1


_SHOWN = ("file", "worker", "valid", "events", "records", "closed")


def _about(violation: object) -> object:
    return violation.get("about") if isinstance(violation, dict) else None


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise _unreadable(path, "there is no .jsonl file in it")
        yield from found


def _judged(path: Path, *given: object) -> dict[str, object]:
    if path.suffix == ".bin":
        raise _unreadable(path, "only transcripts of text can be judged, an event a line")
    minimum = given[0] if given else _minimum_beside(path)
    start = transcript_minimum(minimum)
    try:
        with path.open("rb") as lines:
            worker = _worker(lines.readline())
            lines.seek(0)
            verdict = judge(read_transcript(lines, minimum), start)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    time_type = TimeType(tuple(Coordinate.of(f"t{i}", Kind.BIGINT) for i in range(len(start))))
    found = verdict.as_json(time_type)
    if isinstance(minimum, list) and len(minimum) == 1:
        # A list of one coordinate was written so, and is written so again.
        found = {key: _listed(key, value) for key, value in found.items()}
    return {"file": str(path), "worker": worker, **found}


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


def _worker(line: bytes) -> int | None:
    """The worker that the first line names, if it names one."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    found = value.get("worker") if isinstance(value, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _minimum_beside(path: Path) -> object:
    case = path.parent / "case.json"
    if not case.is_file():
        return 0
    try:
        value = _json(case.read_text(encoding="utf-8"), str(case))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(case, str(error)) from error
    return value.get("minimum", 0) if isinstance(value, dict) else 0


def _json(text: str, what: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            "CAP-TIME",
            f"{what} is not JSON: {error}",
            "give an integer, or for nested times a list of integers",
        ) from error
    return value


def _unreadable(path: Path, reason: str) -> BadRequest:
    return BadRequest(
        "CAP-FILE",
        f"{path} cannot be judged: {reason}",
        "name .jsonl files, or folders that hold some",
        file=str(path),
    )
