"""A short run of what the jobs do, which the class archive of a Spark installation is built from.

`spark-submit` starts it with an empty working folder. It captures rows, verifies them, replays them
as a copy and through a transform, and audits the results, which can then be deleted.

"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from capstan.capture.run import capture
from capstan.core.config import ByColumn, EventTime, ProjectConfig, Source, Stream, Transform
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.spark.session import build_session
from capstan.storage.lake import Lake

_START = datetime(2024, 1, 1, tzinfo=UTC)
_ROWS = 200


def _write_source(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in range(2):
        numbers = range(part * _ROWS, (part + 1) * _ROWS)
        columns = {
            "id": pa.array(numbers, pa.int64()),
            "place": pa.array(["abc"[n % 3] for n in numbers]),
            "at": pa.array(
                [_START + n * timedelta(minutes=15) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "amount": pa.array([n % 97 for n in numbers], pa.int32()),
        }
        pq.write_table(pa.table(columns), folder / f"part-{part}.parquet")


def _declared(folder: Path) -> ProjectConfig:
    stream = Stream(
        name="training",
        source=Source(
            format="parquet",
            path=str(folder),
            options={"maxFilesPerTrigger": "1"},
            schema="id BIGINT, place STRING, at TIMESTAMP, amount INT",
        ),
        workers=ByColumn(column="place", labels=("a", "b", "c")),
        time=EventTime(column="at", every=timedelta(hours=1), lateness=timedelta(hours=1)),
    )
    by_day = Transform(
        name="by_day",
        sql="SELECT _worker, date_trunc('DAY', _time.event) AS day, sum(amount) AS total "
        "FROM records GROUP BY _worker, date_trunc('DAY', _time.event)",
        time="day",
        grain=timedelta(days=1),
        worker="_worker",
    )
    return ProjectConfig(folder / "none.yaml", {stream.name: stream}, {"by_day": by_day}, {}, {})


def main(folder: Path) -> int:
    """Do the work in `folder`, and return the exit code of the process."""
    source = folder / "source"
    _write_source(source)
    declared, lake = _declared(source), Lake.at(folder / "lake")
    spark = build_session("capstan training")
    try:
        capture(spark, lake, declared.stream("training"))
        copy = Request("training", "copy", workers=("a", "b"), until="2024-01-03")
        for request in (copy, Request("training", "by_day", transform="by_day")):
            replay(spark, lake, declared, request)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
