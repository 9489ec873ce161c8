"""Actions on the small stream that tests run in another driver, by name and arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from capstan.backfill.pauses import set_paused
from capstan.backfill.planner import BackfillRequest
from capstan.capture.batch import micro_batch
from capstan.capture.dead_letters import drop, fix
from capstan.capture.drop_request import Drop
from capstan.capture.fix_request import Fix
from capstan.capture.query.attached_query import CaptureInto
from capstan.capture.run import capture, close, put_back
from capstan.core.config import ByKey, EventTime, ProjectConfig, Source, Stream
from capstan.core.config.sources import QUERY
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.import_topics import import_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.maintenance.retire import retire
from capstan.maintenance.run import maintain
from capstan.replay.execution.approval import Decision, reject
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import publish, replay, rollback, unlock
from capstan.storage.compaction import index_compaction
from capstan.storage.compaction.policy import INDEX, Sizes
from capstan.storage.lake import Lake
from capstan.storage.late.late_rows import LateSelection
from capstan.storage.ledger import claims
from capstan.storage.ledger.runs import read_histories
from capstan.storage.tape import index
from capstan.storage.tape.index_totals import EVERY
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support import kafka_topics, lake_contents, small_stream
from tests.support.contexts import backfill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Arguments = Mapping[str, object]


def act(spark: SparkSession, name: str, arguments: Arguments) -> dict[str, object]:
    """Run an action, in whichever driver this is.

    Args:
        spark: The session.
        name: One of `capture`; `attach`, a query with a trigger by time that records the same rows
            by `capture_into`, until it has recorded all of them; `put-back`, `close`, `import`,
            `drop`, of all that is not on tape; `fix`, which gives a time to records without one;
            `export-topics`, `import-topics`, `recapture`, `replay`, `backfill`, `publish`,
            `reject`, `rollback`, `maintain`, `retire`; `pause`, of what `backfill` fills by
            default, or with `resume` its end; `unlock`, for all runs that hold a lock;
            `remount`, which changes the options of a file system; `fill`, which leaves little of it
            free; `click`, which sends records to a Kafka topic, and `capture-clicks`; `contents`,
            the contents of a sound tape and a table.
        arguments: `lake` and `source` are folders; `capture` takes `reseat`, `rescale`, the number
            of `workers` by key, whether the source is `idle`, and after how `every` many commits
            its index is merged; those of topics take the URL
            `topics`; `import` takes the folder `recordings`, of timely's frames; `recapture` takes
            `into` and `peers`; `replay` takes the fields of a `Request` under `request`; `backfill`
            takes the name of a `replay`, whose gaps it fills with one run per interval, and the
            length of intervals as `every`; `publish`, `reject` and `rollback` take `run`, by
            default the newest one, and the first two take `by`, the person who decided; `remount`
            takes `options` of the lake's file system; `fill` takes the number of bytes that stay
            `free`, and recreates its file; those of clicks take the `broker`, and `click` the
            number of the `first` record and their `count`; `contents` takes a `table`; `maintain`
            takes the fields of `Sizes` under `sizes`, and `retire` takes `before`.

    Returns:
        The result, as JSON.
    """
    source = Path(str(arguments["source"]))
    work = _Work(
        spark, Lake.at(str(arguments["lake"])), small_stream.declarations(source), arguments
    )
    return _ACTIONS[name](work)


@dataclass(frozen=True, slots=True)
class _Work:
    """Session, lake, declarations and arguments of an action."""

    spark: SparkSession
    lake: Lake
    declared: ProjectConfig
    arguments: Arguments

    def named(self, name: str) -> str:
        return str(self.arguments[name])

    @property
    def run(self) -> str:
        return str(self.arguments.get("run") or list(read_histories(self.lake))[-1])


def _capture(work: _Work) -> dict[str, object]:
    reseat = bool(work.arguments.get("reseat", False))
    rescale = _number(work.arguments.get("rescale"))
    stream = _stream(work.declared.stream(small_stream.NAME), work.arguments)
    every = _number(work.arguments.get("every")) or EVERY
    with (
        patch.object(micro_batch, "EVERY", every),
        patch.object(index_compaction, "OF_CAPTURES", replace(INDEX, many=min(every, INDEX.many))),
    ):
        result = capture(work.spark, work.lake, stream, reseat=reseat, rescale=rescale)
    return {"batches": result.batches, "fed": result.fed, "records": result.records}


def _attach(work: _Work) -> dict[str, object]:
    stream = work.declared.stream(small_stream.NAME)
    reader = work.spark.readStream.schema(str(stream.source.schema)).options(
        **stream.source.options
    )
    into = CaptureInto(work.lake, replace(stream, source=Source(QUERY)))
    query = (
        reader.parquet(str(stream.source.path))
        .writeStream.foreachBatch(into)
        .option("checkpointLocation", f"{work.lake.root}-query")
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return {}


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


def _put_back(work: _Work) -> dict[str, object]:
    return {"records": put_back(work.spark, work.lake, small_stream.NAME).records}


def _drop(work: _Work) -> dict[str, object]:
    request = Drop("somebody", "a test", LateSelection())
    return {"records": drop(work.spark, work.lake, small_stream.NAME, request).records}


def _fix(work: _Work) -> dict[str, object]:
    stream = work.declared.stream(small_stream.NAME)
    select, without_time = ("timestamp '2024-03-01 05:00:00' AS at",), LateSelection("no-time")
    done = fix(work.spark, work.lake, stream, Fix("somebody", select, without_time))
    return {"records": done.repair.records}


def _close(work: _Work) -> dict[str, object]:
    return {"closed": close(work.spark, work.lake, small_stream.NAME)[1]}


def _recapture(work: _Work) -> dict[str, object]:
    into, peers = work.named("into"), int(work.named("peers"))
    request = RecaptureRequest(small_stream.NAME, into, peers=peers)
    done = recapture(work.spark, work.lake, request)
    return {"commit": done.commit, "records": done.records, "unchanged": done.unchanged}


def _replay(work: _Work) -> dict[str, object]:
    request = request_of(work.arguments)
    return _outcome(replay(work.spark, work.lake, work.declared, request))


def _backfill(work: _Work) -> dict[str, object]:
    name = str(work.arguments.get("replay", small_stream.BACKFILLED.name))
    request = BackfillRequest(name, every=str(work.arguments.get("every", "2 hours")), chunk=1)
    result = backfill(work.spark, work.lake, work.declared, request)
    if result.error is not None:
        raise result.error
    return result.to_json()


def _pause(work: _Work) -> dict[str, object]:
    paused = not work.arguments.get("resume")
    return {"changed": set_paused(work.lake, small_stream.BACKFILLED.name, paused=paused)}


def _publish(work: _Work) -> dict[str, object]:
    decision = Decision(work.named("by")) if "by" in work.arguments else None
    return _outcome(publish(work.spark, work.lake, work.declared, work.run, decision))


def _reject(work: _Work) -> dict[str, object]:
    return {"step": str(reject(work.lake, work.run, Decision(work.named("by"))).step)}


def _rollback(work: _Work) -> dict[str, object]:
    return {"version": rollback(work.spark, work.lake, work.declared, work.run)}


def _unlock(work: _Work) -> dict[str, object]:
    """Unlock all runs with an active lock."""
    locked = [claim.run for claim in claims.active(work.lake)]
    return {run: unlock(work.lake, run) for run in locked}


def _remount(work: _Work) -> dict[str, object]:
    options = f"remount,{work.named('options')}"
    program = shutil.which("mount") or "mount"
    subprocess.run([program, "-o", options, work.lake.root], check=True)
    return {}


def _fill(work: _Work) -> dict[str, object]:
    ballast = Path(work.lake.root) / ".ballast"
    ballast.unlink(missing_ok=True)
    free = shutil.disk_usage(work.lake.root).free
    left = work.arguments["free"]
    assert isinstance(left, int)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - left))
    return {"filled": free - left}


def _click(work: _Work) -> dict[str, object]:
    first, count = (int(work.named(name)) for name in ("first", "count"))
    kafka_topics.click(
        work.spark, work.named("broker"), kafka_topics.NAME, range(first, first + count)
    )
    return {"sent": count}


def _capture_clicks(work: _Work) -> dict[str, object]:
    hasty = {**kafka_topics.HASTY, "maxOffsetsPerTrigger": "10"}
    stream = kafka_topics.stream_of(work.named("broker"), kafka_topics.NAME, **hasty)
    result = capture(work.spark, work.lake, stream)
    return {"batches": result.batches, "fed": result.fed, "records": result.records}


def _contents(work: _Work) -> dict[str, object]:
    lake_contents.require_sound(work.spark, work.lake)
    return {
        "tape": lake_contents.tape(work.lake),
        **lake_contents.table(work.lake, work.named("table")),
    }


def _export_topics(work: _Work) -> dict[str, object]:
    tape = open_tape(work.lake, small_stream.NAME)
    cut = newest_cut(tape)
    workers = index.worker_labels(tape, cut)
    topics = Topics.parse(work.named("topics"))
    return export_topics(work.spark, work.lake, tape, topics, workers=workers, cut=cut).to_json()


def _import_topics(work: _Work) -> dict[str, object]:
    topics = Topics.parse(work.named("topics"))
    return import_topics(work.spark, work.lake, small_stream.NAME, topics).to_json()


def _import(work: _Work) -> dict[str, object]:
    folder = Path(work.named("recordings"))
    result = import_recordings(
        work.spark,
        work.lake,
        folder.name,
        find_recordings(folder, Format.TIMELY),
        Form.of_folder(folder, Format.TIMELY),
    )
    return {"unchanged": result.unchanged, "records": sum(file.records for file in result.surveys)}


def _maintain(work: _Work) -> dict[str, object]:
    sizes = work.arguments["sizes"]
    assert isinstance(sizes, Mapping)
    done = maintain(work.spark, work.lake, [small_stream.NAME], sizes=Sizes(**sizes))
    if done.failed and done.refusal is not None:
        # A job or a command would fail with this error.
        raise done.refusal
    return done.to_json()


def _retire(work: _Work) -> dict[str, object]:
    return retire(work.spark, work.lake, small_stream.NAME, work.named("before")).to_json()


_ACTIONS: dict[str, Callable[[_Work], dict[str, object]]] = {
    "capture": _capture,
    "attach": _attach,
    "put-back": _put_back,
    "drop": _drop,
    "fix": _fix,
    "close": _close,
    "import": _import,
    "export-topics": _export_topics,
    "import-topics": _import_topics,
    "recapture": _recapture,
    "replay": _replay,
    "backfill": _backfill,
    "pause": _pause,
    "publish": _publish,
    "reject": _reject,
    "rollback": _rollback,
    "unlock": _unlock,
    "maintain": _maintain,
    "retire": _retire,
    "remount": _remount,
    "fill": _fill,
    "click": _click,
    "capture-clicks": _capture_clicks,
    "contents": _contents,
}


def request_of(arguments: Arguments) -> Request:
    """The request for the arguments of `replay`; of the small stream by default."""
    fields = arguments["request"]
    assert isinstance(fields, Mapping)
    return Request.from_json({**Request(small_stream.NAME, "unnamed").to_json(), **fields})


def _outcome(outcome: ReplayResult) -> dict[str, object]:
    certificate = outcome.certificate
    return {
        "run": None if certificate is None else certificate.run,
        "unchanged": outcome.unchanged,
        "certificate": {} if certificate is None else certificate.to_json(),
    }
