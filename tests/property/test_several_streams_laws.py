"""Pipelines over several streams give what SQL gives over their records below the meet."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.pipeline import TIME, pipelines, reach_of
from tests.bench.workloads.nexmark_graphs import columns_of
from tests.bench.workloads.nexmark_streams import REFERENCES
from tests.support.local_runner import run_locally

TIMES = TimeType.of(event=Kind.TIMESTAMP)
SECOND = 1_000_000
NAMES = {"people": "person", "auctions": "auction", "bids": "bid"}

SQL = {
    "market_q3": """
        SELECT P.name, P.city, P.state, A.id FROM auctions AS A JOIN people AS P
        ON A.seller = P.id WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
    """,
    "market_q8": """
        SELECT P.id, P.name, make_timestamp(P.span * 10000000) AS starttime
        FROM (SELECT DISTINCT id, name, _time // 10000000 AS span FROM people) AS P
        JOIN (SELECT DISTINCT seller, _time // 10000000 AS span FROM auctions) AS A
            ON P.id = A.seller AND P.span = A.span
        WHERE (P.span + 1) * 10000000 <= $meet
    """,
    "market_bids": """
        SELECT A.id, B.price, P.name FROM auctions AS A
        JOIN bids AS B ON A.id = B.auction AND B._time >= A._time AND B."dateTime" <= A.expires
        JOIN people AS P ON P.id = B.bidder
    """,
}
SHOWN = {
    "market_q3": ("name", "city", "state", "id"),
    "market_q8": ("id", "name", "starttime"),
    "market_bids": ("id", "bid_price", "bidder_name"),
}

# Few keys and times, so that most rows find another one.
ids, moments = st.integers(0, 1), st.integers(0, 19)
places = st.sampled_from(["OR", "AZ"])
person = {"at": moments, "id": ids, "name": st.sampled_from("abc"), "state": places}
auction = {"at": moments, "id": ids, "seller": ids, "category": st.integers(10, 11), "for": moments}
bid = {"at": moments, "auction": ids, "bidder": ids, "price": moments}
people, auctions, bids = (
    st.lists(st.fixed_dictionaries(row), min_size=4, max_size=9) for row in (person, auction, bid)
)


def table(source, rows):
    """Rows of a stream with the columns of its events; those that no test reads are null."""
    schema = columns_of(NAMES[source])
    full = []
    for row in rows:
        moment = row["at"] * SECOND
        known = {**row, TIME: moment, "dateTime": moment, "city": row.get("name")}
        known["expires"] = moment + row.get("for", 0) * SECOND
        full.append({name: known.get(name) for name in schema.names})
    return pa.Table.from_pylist(full, schema=schema)


def by_sql(query, tables, meet):
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, rows in tables.items():
        connection.register(name, rows)
    given = {"meet": meet} if "$meet" in SQL[query] else {}
    actual = connection.execute(SQL[query], given).fetchall()
    return Counter(tuple(map(str, row)) for row in actual)


def shown(rows):
    return Counter(
        tuple(str(value).removesuffix("+00:00") for value in row.values())
        for row in rows.to_pylist()
    )


@pytest.mark.parametrize("query", sorted(SQL))
@settings(max_examples=12, deadline=None)
@given(
    people,
    auctions,
    bids,
    st.lists(st.integers(5, 25) | st.none(), min_size=3, max_size=3),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 9),
)
def test_several_streams_give_what_sql_gives_below_their_meet(
    query, persons, sold, offered, frontiers, peers, size
):
    pipeline = pipelines(references=REFERENCES).get(query)
    sources = {n.name for n in pipeline.dag().nodes if not pipeline.dag().inputs(n.name)}
    given_rows = {"people": persons, "auctions": sold, "bids": offered}
    ends = dict(zip(sorted(NAMES), frontiers, strict=True))
    # One may be closed, another lag behind: nothing at or after the least is played.
    held = [ends[name] * SECOND for name in sources if ends[name] is not None]
    frontier = Antichain.of(Time((end,)) for end in held)
    meet = min(held, default=1_000 * SECOND)
    played = {
        name: table(name, [row for row in given_rows[name] if row["at"] * SECOND < meet])
        for name in sorted(sources)
    }
    reach = reach_of(pipeline, TIMES, Box.everything(TIMES), frontier)
    run = run_locally(played, pipeline, reach, peers=peers, rows_per_batch=size)
    out = run.sinks["out"].select(list(SHOWN[query]))
    assert shown(out) == by_sql(query, played, meet)
