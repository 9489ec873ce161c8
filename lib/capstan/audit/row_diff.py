"""Row differences within differing cells: exact counts and a sample.

Rows are identified by their hash pair, with multiplicity; their values are read only for the
sample. Within a group (a cell, or a key in a cell if keys are declared), each pair of a missing and
an extra row counts as one *changed* row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import and_

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField

from capstan.audit.result import Finding
from capstan.audit.row_view import View, place_of, time_of
from capstan.core.json_object import Json
from capstan.core.sql_names import quoted
from capstan.spark.session import persisted
from capstan.storage.tape.fingerprint import row_hashes

_GROUP = ("k1", "k2")
_HASHES = ("h1", "h2")
_AS_TEXT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison of rows; its keys, if any, identify a row within its cell."""

    view: View
    fields: Sequence[StructField]  # in the order in which they are hashed
    keys: Sequence[StructField] = ()

    def rows(self, cells: DataFrame, sign: int) -> DataFrame:
        """Rows in `cells`: place, key hashes, row hashes, `sign`, and the values as JSON `text`."""
        data = self.view.data
        keys = row_hashes(self.keys, data) if self.keys else (F.lit(0), F.lit(0))
        hashes = zip(_GROUP + _HASHES, keys + row_hashes(self.fields, data), strict=True)
        rows = self.view.frame.select(
            *self.view.place,
            *(column.cast("bigint").alias(name) for name, column in hashes),
            F.lit(sign).alias("sign"),
            row_text(self.fields, data).alias("text"),
        )
        return within(rows, cells)


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """Row counts by kind, and a sample."""

    totals: Mapping[str, int]
    findings: tuple[Finding, ...]


NO_ROWS = RowDifferences({"missing": 0, "extra": 0, "changed": 0}, ())


def row_text(fields: Iterable[StructField], data: Column | None = None) -> Column:
    """A row's values as JSON text, from the struct `data` or else from the frame itself."""

    def value(field: StructField) -> Column:
        column = F.col(quoted(field.name)) if data is None else data.getField(field.name)
        if isinstance(field.dataType, DecimalType):
            column = column.cast("string")  # A JSON number would be read as a float.
        return column.alias(field.name)

    return F.to_json(F.struct(*map(value, fields)), _AS_TEXT)


def within(rows: DataFrame, cells: DataFrame, names: Iterable[str] = ()) -> DataFrame:
    """The rows whose place, or whose `names`, is among `cells`; NULL matches NULL."""
    same = [F.col(f"r.{n}").eqNullSafe(F.col(f"c.{n}")) for n in names or place_of(cells)]
    return rows.alias("r").join(cells.alias("c"), reduce(and_, same), "left_semi")


def row_differences(expected: Side, actual: Side, cells: DataFrame, limit: int) -> RowDifferences:
    """The rows that differ in some cells."""
    wanted, stored = expected.rows(cells, 1), actual.rows(cells, -1)
    group = [*place_of(cells), *_GROUP]
    signed = wanted.drop("text").unionByName(stored.drop("text"))
    sums = signed.groupBy(*group, *_HASHES).agg(F.sum("sign").alias("net"))
    with persisted(sums.where("net <> 0")) as net:
        totals = _totals(net, group)
        missing, extra = _sample(net, group, limit)
    values = _values(wanted.unionByName(stored), [*missing, *extra])
    findings = _findings(group, [*missing, *extra], values, limit)
    return RowDifferences(totals, tuple(findings)[:limit])


def _totals(net: DataFrame, group: list[str]) -> dict[str, int]:
    """Exact counts of rows by kind."""
    by_group = net.groupBy(*group).agg(
        F.sum(F.greatest("net", F.lit(0))).alias("missing"),
        F.sum(F.greatest(-F.col("net"), F.lit(0))).alias("extra"),
    )
    paired = F.least("missing", "extra")
    totals = by_group.agg(
        F.sum(F.col("missing") - paired).alias("missing"),
        F.sum(F.col("extra") - paired).alias("extra"),
        F.sum(paired).alias("changed"),
    ).first()
    assert totals is not None
    return {kind: totals[kind] or 0 for kind in ("missing", "extra", "changed")}


def _sample(net: DataFrame, group: list[str], limit: int) -> tuple[list[Row], list[Row]]:
    """The first missing and extra rows, limited to groups that both samples cover."""
    order = [*group, *_HASHES]
    first, second = (
        net.where(condition).orderBy(*order).limit(limit) for condition in ("net > 0", "net < 0")
    )
    rows = sorted(first.unionByName(second).collect(), key=lambda row: _order(order, row))
    sides = [row for row in rows if row["net"] > 0], [row for row in rows if row["net"] < 0]
    # A side cut at its limit would leave rows of the other side without their counterpart.
    ends = [_order(group, side[-1]) for side in sides if len(side) == limit]
    end = min(ends, default=None)
    missing, extra = (
        [row for row in side if end is None or _order(group, row) <= end] for side in sides
    )
    return missing, extra


def _order(names: Iterable[str], row: Row) -> tuple[tuple[bool, int], ...]:
    """The sort key in Spark's order, NULL first."""
    return tuple((row[name] is not None, row[name] or 0) for name in names)


def _values(rows: DataFrame, sample: list[Row]) -> dict[tuple[object, ...], Json]:
    """The values of sampled rows, by sign, place and hashes."""
    names = ["sign", *place_of(rows), *_HASHES]
    types = ", ".join(f"{n} {'INT' if n in ('sign', 'worker') else 'BIGINT'}" for n in names)
    signed = [(1 if row["net"] > 0 else -1, *(row[n] for n in names[1:])) for row in sample]
    listed = rows.sparkSession.createDataFrame(signed, types)
    sampled = within(rows, F.broadcast(listed), names)
    texts = sampled.groupBy(*names).agg(F.first("text").alias("text"))
    return {tuple(row[name] for name in names): json.loads(row["text"]) for row in texts.collect()}


def _findings(
    group: list[str], rows: list[Row], values: dict[tuple[object, ...], Json], limit: int
) -> Iterator[Finding]:
    places = [name for name in group if name not in _GROUP]

    def by_group(row: Row) -> tuple[tuple[bool, int], ...]:
        return _order(group, row)

    for _, members in groupby(sorted(rows, key=by_group), by_group):
        missing: list[Json] = []
        extra: list[Json] = []
        for row in members:
            sign, side = (1, missing) if row["net"] > 0 else (-1, extra)
            content = values.get((sign, *(row[name] for name in (*places, *_HASHES))), {})
            side += [content] * min(abs(row["net"]), limit)
        where, pairs = (row["worker"], time_of(row)), _pairs(missing, extra)
        paired = set(pairs.values())
        yield from (Finding(*where, "changed", missing[i], extra[j]) for i, j in pairs.items())
        alone = (content for i, content in enumerate(missing) if i not in pairs)
        yield from (Finding(*where, "missing", content, None) for content in alone)
        alone = (content for j, content in enumerate(extra) if j not in paired)
        yield from (Finding(*where, "extra", None, content) for content in alone)


def _pairs(missing: Sequence[Json], extra: Sequence[Json]) -> dict[int, int]:
    """Pairs of missing and extra rows, matched by the most equal values."""
    scored = sorted(
        (-sum(b.get(name) == value for name, value in a.items()), i, j)
        for i, a in enumerate(missing)
        for j, b in enumerate(extra)
    )
    pairs: dict[int, int] = {}
    used: set[int] = set()
    for _, i, j in scored:
        if i not in pairs and j not in used:
            pairs[i] = j
            used.add(j)
    return pairs
