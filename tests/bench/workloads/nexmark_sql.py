"""Nexmark's queries as SQL over the views `person`, `auction` and `bid`, with all their rows.

Written for Spark. If Nexmark leaves the order of equal rows open, event time decides here, and no
two events have the same. A window of q7 has only its own bids; Nexmark's text also takes bids of
the next window's first moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASKS: Final[Mapping[int, str]] = {
    0: "bids as they are",
    1: "bids in euros",
    2: "bids for some auctions",
    3: "who sells in category 10, nearby",
    4: "the mean closing price by category",
    5: "the auctions with the most bids in ten seconds",
    7: "the highest bids of each ten seconds",
    8: "who joined and sold within the same ten seconds",
    9: "the winning bid of each auction",
    11: "how many bids a bidder makes before a pause",
    12: "how many bids a bidder makes in ten seconds by the clock",
    14: "bids in a range of prices, with the time of day",
    18: "the last bid of each bidder for each auction",
    19: "the ten highest bids of each auction",
    20: "bids for auctions of category 10, with the auction",
    21: "the number of each bid's channel",
    22: "the folders of each bid's address",
}
"""Description of each query, by its number."""

CHANNEL_ID: Final = """
    SELECT * FROM (
        SELECT _time, auction, bidder, price, channel, CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM input)
    WHERE channel_id <> ''
"""
"""q21 row by row, in the SQL of a pipeline."""

DIRECTORIES: Final = """
    SELECT _time, auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
    FROM input
"""
"""q22 row by row, in the SQL of a pipeline."""

_CONVERTED = "CAST(CAST(price AS DECIMAL(20, 0)) * 0.908BD AS DECIMAL(23, 3))"
_IN_TIME = """
    auction AS A JOIN bid AS B
        ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
"""
_WINDOWED = "window(dateTime, '10 seconds')"

QUERIES: Final[Mapping[int, str]] = {
    0: "SELECT auction, bidder, price, dateTime, extra FROM bid",
    1: f"SELECT auction, bidder, {_CONVERTED} AS price, dateTime, extra FROM bid",
    2: "SELECT auction, price FROM bid WHERE mod(auction, 123) = 0",
    3: """
        SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
    """,
    4: f"""
        SELECT category, avg(final) AS average FROM (
            SELECT max(B.price) AS final, A.category FROM {_IN_TIME} GROUP BY A.id, A.category)
        GROUP BY category
    """,
    5: """
        SELECT auction, num FROM (
            SELECT *, max(num) OVER (PARTITION BY span) AS most FROM (
                SELECT auction, count(*) AS num,
                    window(dateTime, '10 seconds', '2 seconds') AS span
                FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')))
        WHERE num = most
    """,
    7: f"""
        SELECT auction, price, bidder, dateTime, extra FROM (
            SELECT *, max(price) OVER (PARTITION BY span) AS most
            FROM (SELECT *, {_WINDOWED} AS span FROM bid))
        WHERE price = most
    """,
    8: f"""
        SELECT P.id, P.name, P.span.start AS starttime
        FROM (SELECT DISTINCT id, name, {_WINDOWED} AS span FROM person) AS P
        JOIN (SELECT DISTINCT seller, {_WINDOWED} AS span FROM auction) AS A
            ON P.id = A.seller AND P.span = A.span
    """,
    9: f"""
        SELECT * EXCEPT (place) FROM (
            SELECT A.id, A.itemName, A.description, A.initialBid, A.reserve, A.dateTime,
                A.expires, A.seller, A.category, A.extra,
                B.auction AS bid_auction, B.bidder, B.price, B.dateTime AS bid_dateTime,
                B.extra AS bid_extra,
                row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) AS place
            FROM {_IN_TIME})
        WHERE place = 1
    """,
    11: """
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
            max(dateTime) + INTERVAL 10 SECONDS AS endtime
        FROM (
            SELECT *, sum(begins) OVER (PARTITION BY bidder ORDER BY dateTime) AS session
            FROM (
                SELECT *, CASE WHEN dateTime < lag(dateTime) OVER (
                    PARTITION BY bidder ORDER BY dateTime) + INTERVAL 10 SECONDS
                    THEN 0 ELSE 1 END AS begins
                FROM bid))
        GROUP BY bidder, session
    """,
    14: f"""
        SELECT auction, bidder, {_CONVERTED} AS price,
            CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bidTimeType,
            dateTime, extra,
            CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE {_CONVERTED} > 1000000 AND {_CONVERTED} < 50000000
    """,
    18: """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, row_number() OVER (
                PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place
            FROM bid)
        WHERE place = 1
    """,
    19: """
        SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number FROM (
            SELECT *, CAST(row_number() OVER (
                PARTITION BY auction ORDER BY price DESC, dateTime) AS BIGINT) AS rank_number
            FROM bid)
        WHERE rank_number <= 10
    """,
    20: """
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime, B.extra, A.itemName,
            A.description, A.initialBid, A.reserve, A.dateTime AS auction_dateTime, A.expires,
            A.seller, A.category, A.extra AS auction_extra
        FROM bid AS B JOIN auction AS A ON B.auction = A.id WHERE A.category = 10
    """,
    21: """
        SELECT * FROM (
            SELECT auction, bidder, price, channel, CASE lower(channel)
                WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
            FROM bid)
        WHERE channel_id <> ''
    """,
    22: """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
            split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
        FROM bid
    """,
}
"""The queries by number."""


def asked(events: DataFrame, number: int) -> DataFrame:
    """The answer to a query over events, by Spark.

    Args:
        events: Events of `tests.bench.workloads.nexmark_events.events`.
        number: A key of `QUERIES`.
    """
    spark = events.sparkSession
    for name in ("person", "auction", "bid"):
        rows = events.where(f"{name} IS NOT NULL").select("dateTime", f"{name}.*")
        rows.createOrReplaceTempView(name)
    try:
        return spark.sql(QUERIES[number])
    finally:
        for name in ("person", "auction", "bid"):
            spark.catalog.dropTempView(name)
