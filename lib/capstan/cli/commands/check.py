"""`check`: checks recordings and declarations, without a lake or a JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.output import row_table, same
from capstan.core.config import load_sound
from capstan.core.config.loading.secret_references import literal_secrets
from capstan.core.environment import lake_of
from capstan.core.json_object import Json
from capstan.core.protocol import Release, StreamChecker, check_all, transcript_minimum
from capstan.core.times import Coordinate, Kind, TimeOrder, TimeType
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    Encoding,
    Frames,
    Lines,
    assumed_of_frames,
    case_beside,
    open_recording,
    recordings_in,
    release_of,
    times_of,
    types_of,
    worker_of,
)

_BIN = ".bin"
_YAML = (".yaml", ".yml")
_FIRST_LINE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Options:
    """The command's options on recordings; None when not given."""

    minimum: object
    time_type: str | None
    record_type: str | None
    timely: str | None


@dataclass(frozen=True, slots=True)
class _FileForm:
    """How a file is read."""

    encoding: Encoding
    minimum: object  # as JSON
    order: TimeOrder
    release: Release | None  # None for a transcript, whose messages show it
    assumed: bool = False  # no release was declared


def check(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Transcripts (.jsonl), timely's files (.bin), or folders of either; or "
            "declarations (.yaml).",
            metavar="PATH...",
        ),
    ],
    minimum: Annotated[
        str | None,
        typer.Option(
            help="The minimum time as JSON; default: from case.json beside the file, else from "
            "the time type, else 0.",
            metavar="JSON",
        ),
    ] = None,
    time_type: Annotated[
        str | None,
        typer.Option(
            help="The type of times, such as u64 or Product<u64,u64>; default: from case.json. "
            "Transcripts are checked against it only when it is given.",
            metavar="TYPE",
        ),
    ] = None,
    record_type: Annotated[
        str | None,
        typer.Option(
            help="The type of records, such as string or (u64,i64); see --time-type.",
            metavar="TYPE",
        ),
    ] = None,
    timely: Annotated[
        str | None,
        typer.Option(
            help="The release of timely whose form the recordings have: 0.31 or 0.32; default: "
            "from case.json, else from the recordings of a folder, if they show it.",
            metavar="RELEASE",
        ),
    ] = None,
) -> int:
    """Check transcripts and timely's files against the protocol's rules; or declarations."""
    files = [path for path in paths if path.suffix in _YAML and path.is_file()]
    if files:
        return _check_declarations(shell_of(context), files, paths)
    options = _Options(minimum_of(minimum), time_type, record_type, timely)
    found = list(_files(paths))
    recordings = [
        _checked(path, form) for path, form in zip(found, _forms(found, options), strict=True)
    ]
    valid = all(recording["valid"] for recording in recordings)
    shell_of(context).output.result(
        {"valid": valid, "streams": recordings},
        row_table("", {**same(*_SHOWN), "violation": _about}, recordings),
        *_tails(recordings),
        *_assumptions(recordings),
        f"{len(recordings)} recordings: " + ("all valid" if valid else "not all are valid"),
    )  # fmt: skip
    return 0 if valid else 1


def _check_declarations(shell: Shell, files: Sequence[Path], paths: Sequence[Path]) -> int:
    """Report the mistakes in declarations, and the options that seem to hold a secret."""
    if len(files) < len(paths):
        raise InvalidRequestError(
            "CAP-USAGE", "declarations and recordings are checked one at a time", "name one kind"
        )
    found = [(file, load_sound(file, lake=lake_of(shell.place))) for file in files]
    mistakes = [str(mistake.error) for _, config in found for mistake in config.mistakes]
    warnings = [
        f"{f}: {secret}" for f, config in found for secret in literal_secrets(config.streams)
    ]
    shell.output.result(
        {"valid": not mistakes, "mistakes": mistakes, "warnings": warnings},
        *mistakes,
        *(f"warning: {warning}" for warning in warnings),
        f"{len(files)} files: {len(mistakes)} mistakes, {len(warnings)} warnings",
    )
    return 1 if mistakes else 0


_SHOWN = ("file", "worker", "valid", "events", "records", "closed")


def _about(row: Json) -> object:
    violation = row["violation"]
    return violation and violation["about"]


def _tails(recordings: Sequence[dict[str, object]]) -> Iterator[str]:
    for recording in recordings:
        torn = recording["torn"]
        if isinstance(torn, dict):
            yield f"{recording['file']}: {torn['about']}; the complete part was checked"


def _assumptions(recordings: Sequence[dict[str, object]]) -> Iterator[str]:
    assumed = Counter(str(item["timely"]) for item in recordings if item["assumed"])
    for release, count in sorted(assumed.items()):
        yield f"{count} read as recordings of timely {release}; --timely declares it"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise InvalidRequestError(
                "CAP-FILE",
                f"{path} does not exist",
                "name .jsonl or .bin files, or folders of them",
                file=str(path),
            )
        yield from recordings_in(path) if path.is_dir() else (path,)


def _checked(path: Path, form: _FileForm) -> dict[str, object]:
    minimum = form.minimum
    start = transcript_minimum(minimum)
    with open_recording(path, form.encoding) as reader:
        verdict = check_all(StreamChecker(start, order=form.order), reader.items())
        torn = reader.torn
    time_type = TimeType(tuple(Coordinate.of(f"t{i}", Kind.BIGINT) for i in range(len(start))))
    result = verdict.to_json(time_type)
    if isinstance(minimum, list) and len(minimum) == 1:
        # The file has times of one coordinate as lists, so the result has them as lists too.
        result = {key: _listed(key, value) for key, value in result.items()}
    named = worker_of(path)
    worker = named if named is not None or path.suffix == _BIN else _worker(path)
    tail = None if torn is None else torn.to_json()
    release = None if form.release is None else str(form.release)
    read = {"timely": release, "assumed": form.assumed}
    return {"file": str(path), "worker": worker, **result, "torn": tail, **read}


def _forms(paths: Sequence[Path], options: _Options) -> Iterator[_FileForm]:
    """The form of each file; the frames of a folder are of one release."""
    assumed: dict[Path, Release] = {}
    for path in paths:
        form = _form(path, options)
        if not isinstance(form.encoding, Frames) or form.release is not None:
            yield form
            continue
        if path.parent not in assumed:
            run = [one for one in paths if one.parent == path.parent and one.suffix == _BIN]
            assumed[path.parent] = assumed_of_frames(run, form.encoding.types)
        release = assumed[path.parent]
        frames = replace(form.encoding, release=release)
        yield replace(form, encoding=frames, release=release, assumed=True)


def _form(path: Path, options: _Options) -> _FileForm:
    """The form of a file as it is declared."""
    release = release_of(path, options.timely)
    # A transcript named after a worker must have that worker's events, as in an import; for any
    # other, the first line names the worker.
    worker = worker_of(path)
    typed = options.time_type is not None or options.record_type is not None
    if path.suffix == _BIN or typed:
        types = types_of(path, options.time_type, options.record_type, options.minimum)
        encoding: Encoding = Lines.of(types, worker, release)
        if path.suffix == _BIN:
            encoding = Frames(types, release=release or Release.V031)
        return _FileForm(encoding, types.minimum_json, types.time.order, release)
    minimum, order = times_of(case_beside(path), minimum=options.minimum)
    lines = Lines(minimum, worker=worker, release=release)
    return _FileForm(lines, minimum, order, release)


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
    """The worker named in the first line of a transcript, if any."""
    with path.open("rb") as lines:
        line = lines.readline(_FIRST_LINE)
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    worker = value.get("worker") if isinstance(value, dict) else None
    return worker if isinstance(worker, int) and not isinstance(worker, bool) else None


def minimum_of(text: str | None) -> object:
    """Parse `--minimum`; None when it was not given."""
    if text is None:
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "CAP-TIME",
            f"--minimum is not JSON: {error}",
            "give an integer, or a list of integers for nested times",
        ) from error
    # Refuses `null` too.
    transcript_minimum(value)
    return value
