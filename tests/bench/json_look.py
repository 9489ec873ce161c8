"""Cost of the look at lines of JSON before they are read, as a share of their capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.source.files.listing import SourceListing
from capstan.capture.source.text.line_checks import CheckedLines
from capstan.core.config import Source
from capstan.storage.lake import Lake
from tests.bench.inputs import FILES, Bench, drop, lay, stream
from tests.bench.measures import Line, compared, interleave

if TYPE_CHECKING:
    from capstan.core.config import Stream
    from tests.bench.cpu_clock import Cost

GOAL = 0.03
SHAPES = ("flat", "nested")


def looks(bench: Bench) -> list[Line]:
    """The results for objects of values, and for objects with an object inside."""
    return [_look(bench, shape) for shape in SHAPES]


def _look(bench: Bench, shape: str) -> Line:
    look, capture = f"look at JSON lines, {shape}", "their capture"
    samples = interleave(
        {
            look: lambda rows, _: _looked(bench, _declared(bench, shape, rows)),
            capture: lambda rows, _: _captured(bench, _declared(bench, shape, rows), rows),
        },
        bench.options.sizes,
        bench.options.rounds,
        bench.tell,
    )
    return compared(samples, look, capture, GOAL)


def _declared(bench: Bench, shape: str, rows: int) -> Stream:
    """A stream of the bids as lines of JSON, which are written once."""
    path = bench.folder / "sources" / f"{rows}-{shape}"
    bids = bench.bids(rows, bench.files(rows))
    if shape == "nested":
        others = [name for name in bids.columns if name not in ("auction", "dateTime")]
        bids = bids.select("auction", "dateTime", F.struct(*others).alias("bid"))
    if not path.exists():
        bench.say(f"{rows:,} bids as lines of JSON, {shape}")
        lay(bids, path, "json")
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in bids.schema)
    source = Source("json", str(path), {"maxFilesPerTrigger": str(FILES)}, schema=columns)
    return replace(stream("bids", path, FILES), source=source)


def _looked(bench: Bench, declared: Stream) -> Cost:
    listing = SourceListing.of(declared.source)
    lines = CheckedLines.of(declared.source, listing)
    assert lines is not None
    assert listing is not None
    files: dict[str, bytes | None] = dict.fromkeys(p for p in listing.files if p.endswith(".json"))
    bench.tidy()
    cost = bench.clock.measure(lambda: lines.look_at(bench.spark, files))
    assert not lines.as_text
    return cost


def _captured(bench: Bench, declared: Stream, rows: int) -> Cost:
    lake = Lake.at(bench.place("json"))
    bench.tidy()
    cost = bench.clock.measure(lambda: bench.captured(lake, declared, rows))
    drop(Path(lake.root))
    return cost
