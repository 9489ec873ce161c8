"""Nexmark-like people, auctions and bids, as one stream of events.

Of each 50 consecutive events the first is a person, the next three are auctions, the others bids,
as in `tests.bench.workloads.nexmark`, which generates the bids. As there, all randomness is a hash
of a seed and the event's number, and ids start at 1000. Three sellers in four are the hot one, the
last person whose number is a multiple of 100. An auction lasts for about as many events as contain
100 auctions, at most twice as many. Nexmark's random letters are hexadecimal digits here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tests.bench.workloads.nexmark import (
    ACTIVE,
    AUCTIONS,
    FIRST_ID,
    HOT_EVERY,
    IN_FLIGHT,
    LEAD,
    PEOPLE,
    ROUND,
    Chance,
    bid_columns,
    checked,
    filler,
    moment,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
    "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES: Final = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
)  # fmt: skip
LAST_NAMES: Final = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
HOT_SELLER_RATIO: Final = 4
"""One in this many auctions is not of a hot seller."""

_FILLED: Final = 100


def events(
    spark: SparkSession,
    rows: int,
    *,
    seed: int = 0,
    events_per_second: int = 10_000,
    partitions: int | None = None,
) -> DataFrame:
    """The first `rows` events.

    Args:
        spark: The session.
        rows: Number of events of all kinds, zero or more.
        seed: The seed; 64 bits, signed.
        events_per_second: Events per second of event time, 1 to 1,000,000.
        partitions: Partitions of the result; None for Spark's default. They do not affect the rows.

    Returns:
        `event BIGINT` (its number), `dateTime TIMESTAMP`, and the structs `person`, `auction` and
        `bid`, of which two are null:

        - person: `id BIGINT, name, emailAddress, creditCard, city, state, extra STRING`;
        - auction: `id BIGINT, itemName, description STRING, initialBid, reserve BIGINT, expires
          TIMESTAMP, seller, category BIGINT, extra STRING`;
        - bid: `auction, bidder, price BIGINT, channel, url, extra STRING`.

    Raises:
        InvalidRequestError: `CAP-NEXMARK` when a number is out of its range.
    """
    checked(rows, seed, events_per_second, partitions)
    turn, place = F.expr("id div 50").alias("round"), (F.col("id") % ROUND).alias("place")
    numbered = spark.range(0, rows, 1, partitions).select(F.col("id").alias("event"), turn, place)
    chance, at = Chance(seed, F.col("event")), F.col("place")
    person = F.struct(*_person(chance, F.col("round")))
    auction = F.struct(*_auction(chance, F.col("round"), at - PEOPLE, events_per_second))
    bid = F.struct(*bid_columns(chance, F.col("round")))
    first_bid = PEOPLE + AUCTIONS
    return numbered.select(
        "event",
        moment(F.col("event"), events_per_second).alias("dateTime"),
        F.when(at < PEOPLE, person).alias("person"),
        F.when((at >= PEOPLE) & (at < first_bid), auction).alias("auction"),
        F.when(at >= first_bid, bid).alias("bid"),
    )


def _person(chance: Chance, turn: Column) -> list[Column]:
    name = F.concat_ws(" ", _one_of(chance, 21, FIRST_NAMES), _one_of(chance, 22, LAST_NAMES))
    mail = F.concat(chance.digits(23), F.lit("@"), F.substring(chance.digits(24), 2, 5))
    groups = [F.lpad(chance.below(n, 10_000).cast("string"), 4, "0") for n in range(25, 29)]
    return [
        (turn * PEOPLE + FIRST_ID).alias("id"),
        name.alias("name"),
        F.concat(mail, F.lit(".com")).alias("emailAddress"),
        F.concat_ws(" ", *groups).alias("creditCard"),
        _one_of(chance, 29, CITIES).alias("city"),
        _one_of(chance, 30, STATES).alias("state"),
        filler(chance, 31, _FILLED).alias("extra"),
    ]


def _auction(chance: Chance, turn: Column, place: Column, events_per_second: int) -> list[Column]:
    started = chance.price(41)
    return [
        (turn * AUCTIONS + place + FIRST_ID).alias("id"),
        filler(chance, 42, 20).alias("itemName"),
        filler(chance, 43, _FILLED).alias("description"),
        started.alias("initialBid"),
        (started + chance.price(44)).alias("reserve"),
        _expires(chance, events_per_second).alias("expires"),
        _seller(chance, turn).alias("seller"),
        (chance.below(45, CATEGORIES) + FIRST_CATEGORY).alias("category"),
        filler(chance, 46, _FILLED).alias("extra"),
    ]


def _seller(chance: Chance, turn: Column) -> Column:
    people = turn + 1
    active = F.least(people, F.lit(ACTIVE))
    cold = people - active + chance.below(48, active + LEAD)
    hot = turn - turn % HOT_EVERY
    return F.when(chance.below(47, HOT_SELLER_RATIO) > 0, hot).otherwise(cold) + FIRST_ID


def _expires(chance: Chance, events_per_second: int) -> Column:
    horizon = IN_FLIGHT * ROUND // AUCTIONS
    return moment(F.col("event") + 1 + chance.below(49, 2 * horizon), events_per_second)


def _one_of(chance: Chance, use: int, words: tuple[str, ...]) -> Column:
    index = chance.below(use, len(words)).cast("int") + 1
    return F.element_at(F.array(*(F.lit(word) for word in words)), index)
