"""What a test has another driver do over the little stream: an action's name and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.capture.run import capture, close, put_back
from capstan.declare import ByKey, EventTime, Stream
from capstan.exchange import (
    Form,
    RecaptureRequest,
    export_topics,
    import_recordings,
    import_topics,
    recapture,
)
from capstan.exchange.form import Format, find_recordings
from capstan.interop.topics import Topics
from capstan.ledger.runs import read_histories
from capstan.replay.approval import Decision
from capstan.replay.request import Request
from capstan.replay.run import Outcome, publish, replay, rollback
from capstan.tape import summary
from capstan.tape.lake import Lake
from capstan.tape.tape import newest_cut, open_tape
from capstan.testing import little

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Arguments = Mapping[str, object]


def act(spark: SparkSession, name: str, arguments: Arguments) -> dict[str, object]:
    """Carry out an action, in whichever driver this is.

    Args:
        spark: The session.
        name: `capture`, `put-back`, `close`, `import`, `export-topics`, `import-topics`,
            `recapture`, `replay`, `publish` or `rollback`.
        arguments: `lake` and `source` are folders; `capture` takes `reseat`, `rescale`, how many
            `workers` by key there are, and whether the source is `idle`; those of topics take their
            place as `topics`; `import` takes the folder `recordings`, of timely's frames;
            `recapture` takes `into` and `peers`; `replay` takes the fields of a `Request` under
            `request`; `publish` and `rollback` take `run`, else it is the newest one, and `publish`
            takes `by`, who has approved it.

    Returns:
        What came of it, as JSON.
    """
    lake, source = Lake.at(str(arguments["lake"])), Path(str(arguments["source"]))
    declared = little.declarations(source)
    if name in ("capture", "put-back", "close"):
        return _written(spark, lake, name, declared.stream(little.NAME), arguments)
    if name == "import":
        return _import(spark, lake, Path(str(arguments["recordings"])))
    if name.endswith("-topics"):
        return _topics(spark, lake, name, Topics.at(str(arguments["topics"])))
    if name == "recapture":
        wanted = RecaptureRequest(
            little.NAME, str(arguments["into"]), peers=int(str(arguments["peers"]))
        )
        done = recapture(spark, lake, wanted)
        return {"commit": done.commit, "records": done.records, "stood": done.stood}
    if name == "replay":
        return _outcome(replay(spark, lake, declared, request_of(arguments)))
    if name == "publish":
        decision = Decision(str(arguments["by"])) if "by" in arguments else None
        return _outcome(publish(spark, lake, declared, _run(lake, arguments), decision))
    if name == "rollback":
        return {"version": rollback(spark, lake, declared, _run(lake, arguments))}
    raise ValueError(name)


def _written(
    spark: SparkSession, lake: Lake, name: str, stream: Stream, arguments: Arguments
) -> dict[str, object]:
    if name == "put-back":
        return {"records": put_back(spark, lake, stream.name).records}
    if name == "close":
        return {"closed": close(spark, lake, stream.name)[1]}
    reseat = bool(arguments.get("reseat", False))
    rescale = _number(arguments.get("rescale"))
    found = capture(spark, lake, _stream(stream, arguments), reseat=reseat, rescale=rescale)
    return {"batches": found.batches, "fed": found.fed, "records": found.records}


def _topics(spark: SparkSession, lake: Lake, name: str, topics: Topics) -> dict[str, object]:
    if name == "import-topics":
        return asdict(import_topics(spark, lake, little.NAME, topics))
    tape = open_tape(lake, little.NAME)
    cut = newest_cut(tape)
    workers = summary.worker_labels(tape, cut)
    return asdict(export_topics(spark, lake, tape, topics, workers=workers, cut=cut))


def _stream(stream: Stream, arguments: Arguments) -> Stream:
    count = _number(arguments.get("workers"))
    if count is not None:
        stream = replace(stream, workers=ByKey(columns=("id",), count=count))
    if arguments.get("idle"):
        assert isinstance(stream.time, EventTime)
        stream = replace(stream, time=replace(stream.time, idle_after=timedelta(milliseconds=1)))
    return stream


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


def _import(spark: SparkSession, lake: Lake, folder: Path) -> dict[str, object]:
    found = import_recordings(
        spark,
        lake,
        folder.name,
        find_recordings(folder, Format.TIMELY),
        Form.of(folder, Format.TIMELY),
    )
    return {"stood": found.stood, "records": sum(each.records for each in found.surveys)}


def request_of(arguments: Arguments) -> Request:
    """The request that the arguments of `replay` stand for; of the little stream by default."""
    fields = arguments["request"]
    assert isinstance(fields, Mapping)
    return Request.from_json({**Request(little.NAME, "unnamed").as_json(), **fields})


def _run(lake: Lake, arguments: Arguments) -> str:
    return str(arguments.get("run") or list(read_histories(lake))[-1])


def _outcome(outcome: Outcome) -> dict[str, object]:
    return {
        "run": outcome.certificate.get("run"),
        "stood": outcome.stood,
        "certificate": dict(outcome.certificate),
    }
