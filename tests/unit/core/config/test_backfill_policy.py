"""The policy of backfills: what its texts say, which are refused, and what follows from them."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from capstan.core.config import BackfillPolicy, Order
from capstan.core.config.durations import Hours, Rate

POLICIES = TypeAdapter(BackfillPolicy)
NIGHT, DAY = Hours(time(22), time(6)), Hours(time(8), time(18, 30), "Europe/Oslo")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_policy_is_read_from_texts() -> None:
    given = {
        "chunk": "7", "order": "newest", "at_most": "1", "rate": " 1500  Rows per minute",
        "hours": "08:00-18:30  Europe/Oslo",
    }  # fmt: skip
    policy = POLICIES.validate_python(given)
    rate = Rate(1500, "rows", "minute")
    assert policy == BackfillPolicy(7, Order.NEWEST, 1, rate, DAY)
    said = {"at_most": 1, "rate": "1500 rows per minute", "hours": "08:00-18:30 Europe/Oslo"}
    assert policy.to_json() == said
    assert POLICIES.validate_python({**given, **said}) == policy
    assert BackfillPolicy().to_json() == dict.fromkeys(said)
    assert POLICIES.validate_python({"hours": "22:00-06:00"}).hours == NIGHT


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("chunk", "0", "greater than or equal to 1"),
        ("at_most", "0", "greater than or equal to 1"),
        ("order", "random", "'oldest' or 'newest'"),
        ("rate", "0 rows per hour", "is not a rate"),
        ("rate", "1 GiB per hour", "give rows, kB, MB, GB or TB per second"),
        ("rate", "5 rows per fortnight", "is not a rate"),
        ("hours", "22:00", "are no hours of a day"),
        ("hours", "22:00-25:00", "are no hours of a day"),
        ("hours", "22:00-22:00", "begin and end at the same time"),
        ("hours", "22:00-06:00 Mars/Olympus", "is no time zone"),
        ("hours", "22:00-06:00 ../../etc/passwd", "is no time zone"),
        ("chunks", "7", "allowed here: chunk, order, at_most, rate or hours"),
    ],
)
def test_what_has_no_meaning_is_refused(key: str, text: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        POLICIES.validate_python({key: text})


@pytest.mark.parametrize(
    ("hours", "moment", "begins"),
    [
        (NIGHT, "2024-05-01T21:59:59", "2024-05-01T22:00:00"),
        (NIGHT, "2024-05-01T22:00:00", "2024-05-01T22:00:00"),
        (NIGHT, "2024-05-01T05:59:59", "2024-05-01T05:59:59"),
        (NIGHT, "2024-05-01T06:00:00", "2024-05-01T22:00:00"),
        # Oslo is two hours before UTC in summer, one in winter.
        (DAY, "2024-05-01T05:30:00", "2024-05-01T06:00:00"),
        (DAY, "2024-05-01T16:29:00", "2024-05-01T16:29:00"),
        (DAY, "2024-05-01T16:30:00", "2024-05-02T06:00:00"),
        (DAY, "2024-10-26T18:00:00", "2024-10-27T07:00:00"),
    ],
)
def test_runs_begin_within_the_hours_of_their_zone(hours: Hours, moment: str, begins: str) -> None:
    assert hours.next(at(moment)) == at(begins)


@given(
    begin=st.times(), end=st.times(), moment=st.datetimes(timezones=st.just(UTC)),
    zone=st.sampled_from(["UTC", "Europe/Oslo", "America/New_York", "Australia/Lord_Howe"]),
)  # fmt: skip
def test_the_next_beginning_is_never_before_the_moment_and_within_two_days(
    begin: time, end: time, zone: str, moment: datetime
) -> None:
    if begin == end or not 2 < moment.year < 9998:
        return
    waits = Hours(begin, end, zone).next(moment) - moment
    assert timedelta() <= waits < timedelta(days=2)


@pytest.mark.parametrize(
    ("text", "shown", "of_bytes", "done", "seconds"),
    [
        ("2000 rows per hour", "2000 rows per hour", False, 500, 900.0),
        ("1 ROW per day", "1 rows per day", False, 10**15, 86_400 * 1e15),
        ("2 gb per minute", "2 GB per minute", True, 3 * 10**9, 90.0),
        ("5 kB per second", "5 kB per second", True, 0, 0.0),
    ],
)
def test_rows_and_bytes_last_as_long_as_the_rate_says(
    text: str, shown: str, of_bytes: bool, done: int, seconds: float
) -> None:
    rate = Rate.parse(text)
    assert isinstance(rate, Rate)
    assert (str(rate), rate.in_bytes, rate.seconds(done)) == (shown, of_bytes, seconds)
    assert Rate.parse(str(rate)) == rate
