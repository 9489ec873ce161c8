"""The columns by which the rows of a graph divide, at each of its sources."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import TIME, DagBuilder
from capstan.pipeline.graph.key_columns import key_columns
from capstan.pipeline.operators import Filter, Project, TopN, Window, WindowJoin, count_rows

BIDS = pa.schema([(TIME, pa.int64()), ("auction", pa.int64()), ("bidder", pa.int64())])
OFFERS = pa.schema([(TIME, pa.int64()), ("item", pa.int64()), ("owner", pa.int64())])


def count(*by: str) -> Window:
    return Window.tumbling(10, [count_rows("n")], by=by)


def joined(*by: str) -> DagBuilder:
    """Windows of bids by some columns, joined with offers by the auction, then counted."""
    return (
        DagBuilder()
        .source("bids", BIDS)
        .source("offers", OFFERS)
        .operator("counted", count(*by))
        .operator("both", WindowJoin(("auction",), ("item",), 10, prefix="offer_"))
        .connect("bids", "counted")
        .connect("counted", "both")
        .connect("offers", "both")
    )


def test_a_key_has_the_name_of_each_source() -> None:
    for by in (("auction",), ("auction", "bidder")):
        dag = joined(*by).sink_for("both", "out").build()
        expected = {"bids": {"auction": "auction"}, "offers": {"auction": "item"}}
        assert key_columns(dag, "out") == expected


def test_a_key_that_is_renamed_or_computed_is_none() -> None:
    renamed = joined("auction").stateless_operator("renamed", Project({"key": "auction"}))
    dag = renamed.connect("both", "renamed").sink_for("renamed", "out").build()
    assert set(map(len, key_columns(dag, "out").values())) == {0}


def test_rows_of_all_keys_together_have_none() -> None:
    best = joined("auction").operator("best", TopN(1, (("n", "descending"),), window=20))
    dag = best.connect("both", "best").sink_for("best", "out").build()
    assert set(map(len, key_columns(dag, "out").values())) == {0}


def test_paths_have_to_agree() -> None:
    """A row of the output is made of bids with the value as their auction and as their bidder."""
    dag = (
        DagBuilder()
        .source("bids", BIDS)
        .operator("sold", count("auction"))
        .operator("bought", count("bidder"))
        .operator("both", WindowJoin(("auction",), ("bidder",), 10, prefix="o_"))
        .connect("bids", "sold")
        .connect("bids", "bought")
        .connect("sold", "both")
        .connect("bought", "both")
        .sink_for("both", "out")
        .build()
    )
    assert key_columns(dag, "out") == {"bids": {}}


def test_rows_one_by_one_have_all_columns_but_the_time() -> None:
    builder = (
        DagBuilder()
        .source("bids", BIDS)
        .stateless_operator("kept", Filter(pc.field("auction") > 1))
    )
    dag = builder.connect("bids", "kept").sink_for("kept", "out").build()
    assert key_columns(dag, "out") == {"bids": {"auction": "auction", "bidder": "bidder"}}
