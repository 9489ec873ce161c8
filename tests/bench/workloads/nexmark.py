"""Nexmark-like bids; Nexmark is a benchmark of queries over an auction site.

Nexmark numbers its events. Of each 50 consecutive events the first is a person, the next three are
auctions and the other 46 are bids. Here only the bids are generated, under their numbers among all
events; `tests.bench.workloads.nexmark_events` generates all of them. Ids start at 1000. Half of the
bids go to a hot auction, the last one whose number is a multiple of 100. Three quarters come from a
hot bidder, the one after the last such person. The others spread over the 100 newest auctions and
1000 newest people, and 10 future ones of either.

There are two intended differences from Nexmark's generator. All randomness is a hash of a seed and
the event's number, so the same bids result on any machine and with any number of partitions. And
the first id is added once, so that bidders are people of the site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
"""Number of events of each kind per round, in this order."""

ROUND = PEOPLE + AUCTIONS + BIDS
FIRST_ID = 1000
HOT_AUCTION_RATIO, HOT_BIDDER_RATIO, HOT_CHANNEL_RATIO = 2, 4, 2
"""One in this many bids is not for a hot auction, a hot bidder, or a hot channel."""

HOT_EVERY = 100
IN_FLIGHT, ACTIVE, LEAD = 100, 1000, 10
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
START_US = 1_436_918_400_000_000
"""Time of event 0: 2015-07-15T00:00:00Z, in microseconds since 1970."""

# A bid should have 100 bytes: 32 of them are numbers, and the rest varies by a fifth.
_EXTRA_LEAST, _EXTRA_SPREAD = 54, 28
_US_PER_SECOND = 1_000_000
_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Chance:
    """Pseudo-random numbers by seed and event number; each `use` has its own sequence."""

    seed: int
    event: Column

    def bits(self, use: int) -> Column:
        """64 bits as a BIGINT."""
        return F.xxhash64(F.lit(self.seed).cast("bigint"), F.lit(use), self.event)

    def below(self, use: int, bound: Column | int) -> Column:
        """A BIGINT from 0 to just below `bound`."""
        return F.pmod(self.bits(use), F.lit(bound) if isinstance(bound, int) else bound)

    def digits(self, use: int) -> Column:
        """Sixteen hexadecimal digits, the first of them 8 to f."""
        # With the highest bit set, there are no leading zeros.
        return F.lower(F.hex(self.bits(use).bitwiseOR(F.lit(-(2**63)))))

    def price(self, use: int) -> Column:
        """In cents: 10 to a power uniform over 0 to 6, so 1 to 1,000,000 in whole units."""
        even = F.shiftrightunsigned(self.bits(use), 11) / F.lit(float(2**53))
        return F.round(F.pow(F.lit(10.0), even * 6) * 100).cast("bigint")


def bids(
    spark: SparkSession,
    rows: int,
    *,
    seed: int = 0,
    events_per_second: int = 10_000,
    partitions: int | None = None,
) -> DataFrame:
    """The first `rows` bids.

    Args:
        spark: The session.
        rows: Number of bids, zero or more.
        seed: The seed; 64 bits, signed.
        events_per_second: Events of all kinds per second of event time, 1 to 1,000,000.
        partitions: Partitions of the result; None for Spark's default. They do not affect the rows.

    Returns:
        Columns `auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime
        TIMESTAMP, extra STRING`, none of them null; one row per bid, ordered by `dateTime` within
        and across partitions.

    Raises:
        InvalidRequestError: `CAP-NEXMARK` when a number is out of its range.
    """
    checked(rows, seed, events_per_second, partitions)
    numbered = spark.range(0, rows, 1, partitions)
    turn, place = F.expr("id div 46"), F.col("id") % BIDS
    event = turn * ROUND + (PEOPLE + AUCTIONS) + place
    chance, at = Chance(seed, F.col("event")), F.col("event")
    *first, extra = bid_columns(chance, F.col("round"))
    return numbered.select(event.alias("event"), turn.alias("round")).select(
        *first, moment(at, events_per_second).alias("dateTime"), extra
    )


def checked(rows: int, seed: int, events_per_second: int, partitions: int | None) -> None:
    """Reject numbers from which no events can be made.

    Raises:
        InvalidRequestError: `CAP-NEXMARK`, naming the number that is out of range.
    """
    _require("rows", rows, 0, _LARGEST // ROUND // _US_PER_SECOND)
    _require("seed", seed, -(2**63), 2**63 - 1)
    _require("events_per_second", events_per_second, 1, _US_PER_SECOND)
    if partitions is not None:
        _require("partitions", partitions, 1, 1_000_000)


def moment(event: Column, events_per_second: int) -> Column:
    """The event time of the event with this number."""
    # Microseconds first, then the rate: a rate that does not divide a second stays exact.
    after = F.call_function("div", event * _US_PER_SECOND, F.lit(events_per_second))
    return F.timestamp_micros(F.lit(START_US) + after)


def bid_columns(chance: Chance, turn: Column) -> list[Column]:
    """The columns of a bid except its time; `extra` is the last one."""
    size = chance.below(8, _EXTRA_SPREAD) + _EXTRA_LEAST
    letters = F.sha2(F.concat_ws(":", F.lit(str(chance.seed)), chance.event), 512)
    return [
        _auction(chance, turn).alias("auction"),
        _bidder(chance, turn).alias("bidder"),
        chance.price(5).alias("price"),
        *_channel_and_url(chance),
        F.substring(letters, F.lit(1), size.cast("int")).alias("extra"),
    ]


def filler(chance: Chance, use: int, length: int) -> Column:
    """Hexadecimal digits, `length` minus up to a fifth; at most 128."""
    size = F.lit(length) - chance.below(use, length // 5 + 1)
    letters = F.sha2(F.concat_ws(":", F.lit(f"{chance.seed}:{use}"), chance.event), 512)
    return F.substring(letters, F.lit(1), size.cast("int"))


def _auction(chance: Chance, turn: Column) -> Column:
    last = turn * AUCTIONS + (AUCTIONS - 1)
    oldest = F.greatest(last - IN_FLIGHT, F.lit(0))
    cold = oldest + chance.below(2, last - oldest + 1 + LEAD)
    hot = last - last % HOT_EVERY
    return F.when(chance.below(1, HOT_AUCTION_RATIO) > 0, hot).otherwise(cold) + FIRST_ID


def _bidder(chance: Chance, turn: Column) -> Column:
    people = turn + 1
    active = F.least(people, F.lit(ACTIVE))
    cold = people - active + chance.below(4, active + LEAD)
    # One after the hot sellers, so that nobody bids on their own auctions.
    hot = turn - turn % HOT_EVERY + 1
    return F.when(chance.below(3, HOT_BIDDER_RATIO) > 0, hot).otherwise(cold) + FIRST_ID


def _channel_and_url(chance: Chance) -> tuple[Column, Column]:
    hot = chance.below(6, HOT_CHANNEL_RATIO) > 0
    number = chance.below(7, CHANNELS)
    name = F.element_at(
        F.array(*(F.lit(channel) for channel in HOT_CHANNELS)),
        (number % len(HOT_CHANNELS) + 1).cast("int"),
    )
    channel = F.when(hot, name).otherwise(F.concat(F.lit("channel-"), number.cast("string")))
    digits = chance.digits(9)
    folders = (F.substring(digits, start, 5) for start in (2, 7, 12))
    page = F.concat_ws("/", F.lit("https://www.nexmark.com"), *folders, F.lit("item.htm?query=1"))
    tail = F.concat(F.lit("&channel_id="), number.cast("string"))
    return channel.alias("channel"), F.when(hot, page).otherwise(F.concat(page, tail)).alias("url")


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(
            "CAP-NEXMARK", f"{name} is {value}", f"{name} may be {least} to {most}", field=name
        )
