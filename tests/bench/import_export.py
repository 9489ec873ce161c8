"""Imports of timely's files compared with Spark reading their bytes; exports with Parquet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pyspark.sql import functions as F

from capstan.core.protocol import Messages, Progress
from capstan.interop.timely import EventTypes, EventWriter
from capstan.interop.transfer.export_files import export_recordings
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import WORKERS, Bench
from tests.bench.measures import Line, rate

_BATCH: Final = 1_000
"""Number of records per messages event."""
_STREAM: Final = "moved"


def moving(bench: Bench) -> list[Line]:
    """The results `import` and `export`: records per second, and the cost of the baseline."""
    folder = bench.place("recordings")
    form = Form.from_options(Format.TIMELY, time_type="u64", record_type="(u64, string)")
    records = bench.options.small // WORKERS // _BATCH * _BATCH
    for worker in range(WORKERS):
        _record(folder / f"worker-{worker}.bin", form, records)
    bench.say(f"{records * WORKERS:,} records in {WORKERS} timely files")
    costs: dict[str, list[Cost]] = {"import": [], "read": [], "export": [], "write": []}
    for _ in range(bench.options.rounds + 1):
        for name, cost in _round(bench, folder, form).items():
            costs[name].append(cost)
            bench.say(f"{name}: {cost.cpu:.1f} CPU s")
    shutil.rmtree(folder)
    total = records * WORKERS
    # The first round is a rehearsal.
    return [
        rate("import", "records/s", total, costs["import"][1:], costs["read"][1:]),
        rate("export", "records/s", total, costs["export"][1:], costs["write"][1:]),
    ]


def _record(path: Path, form: Form, records: int) -> None:
    """Write one recording: a thousand records at each time, then an advance to the next."""
    types = form.types
    assert isinstance(types, EventTypes)
    with path.open("wb") as sink, EventWriter(sink, form.encoding(0)) as writer:
        for time in range(records // _BATCH):
            numbers = range(time * _BATCH, (time + 1) * _BATCH)
            writer.push(Messages.of((time,), [(n, f"record {n}") for n in numbers]))
            writer.push(Progress.of([((time,), -1), ((time + 1,), 1)]))
        writer.push(Progress.of([((records // _BATCH,), -1)]))


def _round(bench: Bench, folder: Path, form: Form) -> dict[str, Cost]:
    lake = Lake.at(bench.place("moving"))
    out = Path(lake.root) / "out"
    spark, recordings = bench.spark, find_recordings(folder, form.format)

    def imported() -> None:
        import_recordings(spark, lake, _STREAM, recordings, form)

    def read() -> None:
        # A file is one row, and every byte of it is read.
        files = spark.read.format("binaryFile").load(f"{folder}/*.bin")
        files.select(F.sum(F.crc32("content"))).collect()

    def exported() -> None:
        tape = open_tape(lake, _STREAM)
        export_recordings(spark, lake, tape, out, form, workers=range(WORKERS))

    def written() -> None:
        rows = spark.read.format("delta").load(lake.stream(_STREAM).records).select("data.*")
        rows.write.parquet(f"{lake.root}/plain")

    work = {"import": imported, "read": read, "export": exported, "write": written}
    costs = {}
    for name, job in work.items():
        bench.tidy()
        costs[name] = bench.clock.measure(job)
    shutil.rmtree(Path(lake.root))
    return costs
