from __future__ import annotations

import json

import pytest

from capstan.core.times import Coordinate, Kind, Time, TimeType
from capstan.errors import InvalidRequestError

EPOCH = TimeType.of(epoch=Kind.BIGINT)
EVENT = TimeType.of(event=Kind.TIMESTAMP)
DAY = TimeType.of(day=Kind.DATE)
BOTH = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)
MARCH = 1362096000_000000  # 2013-03-01T00:00:00Z


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("2013-03-01", MARCH),
        ("2013-03-01T00:00", MARCH),
        ("2013-03-01 00:00:00", MARCH),
        ("2013-03-01T00:00:00Z", MARCH),
        ("2013-03-01T00:00:00.000001Z", MARCH + 1),
        ("2013-03-01T00:00:00.5", MARCH + 500_000),
        ("2013-02-28T19:00:00-05:00", MARCH),
        ("2013-03-01T05:30+0530", MARCH),
        ("2013-03-01T01:00+01", MARCH),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("0001-01-01", -62135596800_000000),
        ("9999-12-31T23:59:59.999999", 253402300799_999999),
        ("2013-03-01T00:00:00.0000001", None),
        ("2013-03-01T00:00:00.1234567Z", None),
        ("0000-01-01", None),
        ("10000-01-01", None),
        ("0001-01-01T00:00+01:00", None),
        ("9999-12-31T23:59:59-01:00", None),
        ("2013-02-29", None),
        ("2013-03-01T24:00", None),
        ("2013-03-01T00:00:60", None),
        ("2013-03-01T00:00+24:00", None),
        ("2013-03-01T00:00+01:60", None),
        ("2013-03-01T", None),
        ("2013-3-1", None),
        ("٢٠١٣-03-01", None),
        ("2013-03-01\n", None),
        ("yesterday", None),
        ("", None),
        (MARCH, None),
        (True, None),
        (None, None),
    ],
)
def test_timestamps(value, microseconds):
    if microseconds is None:
        with pytest.raises(InvalidRequestError) as caught:
            EVENT.parse(value)
        assert caught.value.code == "CAP-TIME"
        assert json.dumps(value, ensure_ascii=False) in caught.value.message
        assert "\n" not in caught.value.message
    else:
        assert EVENT.parse(value) == Time.of(microseconds)


@pytest.mark.parametrize("offset", ["+25:00", "-24", "+0160"])
def test_an_offset_out_of_range_is_named(offset):
    with pytest.raises(InvalidRequestError) as caught:
        EVENT.parse(f"2013-03-01T10:00{offset}")
    assert f"(the offset {offset} is out of range: hours are at most 18" in caught.value.message


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 1.0, 1.5, True, "1", None, {}, [], [1, 2], [[1]]]
)
def test_integers_are_integers_of_64_bits(value):
    with pytest.raises(InvalidRequestError) as caught:
        EPOCH.parse(value)
    assert caught.value.code == "CAP-TIME"
    assert caught.value.exit_code == 2


def test_an_integer_too_long_to_be_written_is_refused():
    with pytest.raises(InvalidRequestError, match="beyond 64 bits"):
        EPOCH.parse(10**5000)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0, [7]])
def test_every_integer_of_64_bits_is_kept_exactly(value):
    assert EPOCH.parse(value) == Time(value if isinstance(value, list) else [value])


@pytest.mark.parametrize("value", ["2013-03-01T00:00", "20130301", 15765, "2013-13-01"])
def test_a_date_is_a_date_only(value):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        DAY.parse(value)


def test_written_form():
    assert EVENT.render(Time.of(MARCH)) == "2013-03-01T00:00:00.000000Z"
    assert EVENT.render(EVENT.minimum) == "0001-01-01T00:00:00.000000Z"
    assert EVENT.render((-1,)) == "1969-12-31T23:59:59.999999Z"
    assert DAY.render(DAY.minimum) == "0001-01-01"
    assert DAY.parse("1970-01-02") == Time.of(1)
    assert EPOCH.minimum == Time.of(0)
    assert BOTH.render((3, MARCH)) == [3, "2013-03-01T00:00:00.000000Z"]
    assert BOTH.render_text((3, MARCH)) == '[3, "2013-03-01T00:00:00.000000Z"]'
    assert EVENT.render_text((MARCH,)) == "2013-03-01T00:00:00.000000Z"


@pytest.mark.parametrize("value", [3, [3], [3, "2013-03-01", 1], ["2013-03-01", 3], "[3]"])
def test_several_coordinates_need_a_list_of_all(value):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        BOTH.parse(value)


@pytest.mark.parametrize(
    ("time_type", "text", "time"),
    [
        (EPOCH, "17", (17,)),
        (EPOCH, " -17 ", (-17,)),
        (EPOCH, "[17]", (17,)),
        (EVENT, "2013-03-01", (MARCH,)),
        (EVENT, '"2013-03-01"', (MARCH,)),
        (BOTH, '[3, "2013-03-01"]', (3, MARCH)),
        (EPOCH, "1.0", None),
        (EPOCH, "1e3", None),
        (EPOCH, "9223372036854775808", None),
        (EPOCH, "9" * 6000, None),
        (EPOCH, "[" * 100_000, None),
        (EPOCH, "[NaN]", None),
        (EPOCH, "", None),
        (EVENT, "20130301", None),
        (BOTH, "3,2013-03-01", None),
        (BOTH, '[3, "2013-03-01"', None),
    ],
)
def test_text_of_the_command_line(time_type, text, time):
    if time is None:
        with pytest.raises(InvalidRequestError) as caught:
            time_type.parse_text(text)
        assert caught.value.code == "CAP-TIME"
        assert len(caught.value.message) < 300
    else:
        assert time_type.parse_text(text) == Time(time)


@pytest.mark.parametrize("name", ["", "Epoch", "1st", "_x", "a-b", "a b", "a;drop", "é", "a\n"])
def test_names_that_no_column_should_have(name):
    with pytest.raises(InvalidRequestError, match="CAP-TIME-TYPE"):
        Coordinate.of(name, Kind.BIGINT)


def test_a_type_has_coordinates_of_different_names():
    with pytest.raises(InvalidRequestError, match="CAP-TIME-TYPE"):
        TimeType(())
    with pytest.raises(InvalidRequestError, match="CAP-TIME-TYPE"):
        TimeType((Coordinate.of("a", Kind.DATE), Coordinate.of("a", Kind.DATE)))


def test_index_of_a_name():
    assert BOTH.index("event") == 1
    with pytest.raises(InvalidRequestError, match="no coordinate"):
        BOTH.index("evnt")


def test_the_type_as_json():
    assert BOTH.to_json() == {
        "coordinates": [
            {"name": "epoch", "kind": "bigint", "minimum": 0},
            {"name": "event", "kind": "timestamp", "minimum": "0001-01-01T00:00:00.000000Z"},
        ]
    }
    without = {"coordinates": [{"name": "epoch", "kind": "bigint"}]}
    assert TimeType.from_json(without) == EPOCH


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "CAP-TIME-TYPE"),
        ({}, "CAP-TIME-TYPE"),
        ({"coordinates": []}, "CAP-TIME-TYPE"),
        ({"coordinates": ["epoch"]}, "CAP-TIME-TYPE"),
        ({"coordinates": [{"name": "a", "kind": "double"}]}, "CAP-TIME-TYPE"),
        ({"coordinates": [{"name": "a", "kind": []}]}, "CAP-TIME-TYPE"),
        ({"coordinates": [{"name": 1, "kind": "bigint"}]}, "CAP-TIME-TYPE"),
        ({"coordinates": [{"name": "a", "kind": "bigint", "minimum": 2**63}]}, "CAP-TIME"),
    ],
)
def test_json_that_is_no_type(value, code):
    with pytest.raises(InvalidRequestError) as caught:
        TimeType.from_json(value)
    assert caught.value.code == code


def test_a_minimum_out_of_range():
    with pytest.raises(InvalidRequestError, match="out of range"):
        Coordinate.of("a", Kind.DATE, -(10**9))
    assert Coordinate.of("a", Kind.BIGINT, -(2**63)).minimum == -(2**63)
