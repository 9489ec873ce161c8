"""Rules for what goes together in a replay, whether it is declared or requested."""

from __future__ import annotations

from typing import Any

from capstan.core.config.change_rules import problem_without_sequence
from capstan.core.config.models import Mode
from capstan.core.config.sequences import SequenceColumn
from capstan.core.config.sql_rules import problem_with_columns
from capstan.core.config.stream_names import check_streams, joined_streams
from capstan.errors import InvalidRequestError


def check_replay(replay: Any) -> None:
    """Check what goes together: streams, workers, computation, changes and the range."""
    _check_streams(replay)
    _check_computation(replay)
    _check_changes(replay)
    if replay.follow is not None and replay.until is not None:
        raise cannot_follow()


def cannot_follow() -> InvalidRequestError:
    """The error for a followed replay that is given an end."""
    return InvalidRequestError(
        "CAP-FOLLOW",
        "a followed replay covers whatever became complete, and cannot have an until, known_at, "
        "as_of or partial",
        "leave them out, or replay without follow",
    )


def _check_streams(replay: Any) -> None:
    check_streams(replay.keyed)
    if replay.keyed:
        if replay.stream != joined_streams(replay.keyed):
            raise InvalidRequestError(
                "CAP-STREAMS",
                f"a replay has a stream and streams; remove one of them, such as {replay.stream}",
                "name the streams by their sources alone",
            )
        if replay.pipeline is None:
            raise InvalidRequestError(
                "CAP-STREAMS",
                "a replay has streams but no pipeline, which reads them",
                "name the pipeline",
            )
    problem = _problem_with_workers(replay)
    if problem is not None:
        raise InvalidRequestError(
            "CAP-WORKERS", problem, "name workers of each stream by the source that reads it"
        )


def _problem_with_workers(replay: Any) -> str | None:
    if not replay.workers_of:
        return None
    if not replay.keyed:
        return "workers_of is for several streams"
    if replay.workers is not None:
        return "workers are chosen both by workers and by workers_of"
    unknown = sorted(set(replay.workers_of) - set(replay.keyed))
    if unknown:
        known = ", ".join(sorted(replay.keyed))
        return f"workers_of names {unknown[0][:80]}, and the streams are those for {known}"
    empty = sorted(key for key, names in replay.workers_of.items() if not names)
    return f"no workers of {empty[0]} are chosen" if empty else None


def _check_computation(replay: Any) -> None:
    problem = None
    if replay.pipeline is not None and replay.transform is not None:
        problem = "a replay has a transform and a pipeline"
    elif replay.sink is not None and replay.pipeline is None:
        problem = "a replay has a sink but no pipeline"
    if problem is not None:
        raise InvalidRequestError("CAP-PIPELINE", problem, "remove one of the two")


def _check_changes(replay: Any) -> None:
    merges = replay.mode is Mode.MERGE
    if merges:
        problem = _problem_with_order(replay)
    else:
        first = "sequence_by needs mode merge" if replay.sequence_by else None
        problem = first or problem_without_sequence(replay)
    if problem is None:
        return
    hint = "give mode merge, keys and sequence_by, or none of them"
    if replay.sequence_by and merges:
        hint = "name columns of the output, and conditions over them; see docs/change-streams.md"
    raise InvalidRequestError("CAP-SEQUENCE", problem, hint)


def _problem_with_order(replay: Any) -> str | None:
    try:
        columns = [SequenceColumn.of(text).column for text in replay.sequence_by]
    except ValueError as error:
        return f"sequence_by: {error}"
    except InvalidRequestError as error:
        return f"sequence_by: {error.message}; {error.hint}"
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        return f"sequence_by has column {twice} twice"
    if replay.unchanged == "":
        return "unchanged is empty, which would be every empty text"
    for name in ("delete_when", "truncate_when"):
        condition = getattr(replay, name)
        problem = None if condition is None else problem_with_columns(condition)
        if problem is not None:
            return f"{name} {problem}"
    return None
