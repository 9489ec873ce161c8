"""One rule of moments, whichever way a text comes in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from capstan.core.config.durations import parse_instant
from capstan.core.config.fields import Bound as DeclaredBound
from capstan.core.times import Box, Coordinate, Kind, TimeType
from capstan.core.times.moment_text import PATTERN, moment
from capstan.errors import InvalidRequestError
from tests.support.moment_texts import TEXTS, random_texts

EVENT = TimeType.of(event=Kind.TIMESTAMP)
BOTH = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DOCS = Path(__file__).parents[4] / "docs" / "configuration.md"


def micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)


def declared(text: str) -> int:
    bound = TypeAdapter(DeclaredBound).validate_python(text)
    assert isinstance(bound, datetime), "a number is a number"
    return micros(bound)


WAYS: dict[str, Callable[[str], int | None]] = {
    "python": moment,
    "bound": lambda text: Box.bound_of_text(EVENT, text)[0],
    "named bound": lambda text: Box.bound_of_text(BOTH, f"event={text}")[1],
    "bound of several": lambda text: Box.bound_of_text(BOTH, json.dumps([None, text]))[1],
    "quoted": lambda text: EVENT.parse_text(json.dumps(text))[0],
    "coordinate": EVENT.coordinates[0].parse_text,
    "instant": lambda text: micros(parse_instant(text)),
    "declaration": declared,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_the_same_moment_in_every_way_in(way: str) -> None:
    wrong = {}
    for text, right in TEXTS.items():
        try:
            read = WAYS[way](text)
        except (ValueError, InvalidRequestError, AssertionError):
            read = None
        expected = None if right is None else micros(datetime.fromisoformat(right))
        if read != expected:
            wrong[text] = (read, expected)
    assert wrong == {}


def test_rendered_moments_are_read_back() -> None:
    coordinate = Coordinate.of("t", Kind.TIMESTAMP)
    for text in [*TEXTS, *random_texts(7, 500)]:
        try:
            read = moment(text)
        except ValueError:
            with pytest.raises(InvalidRequestError, match="CAP-TIME"):
                coordinate.parse(text)
            continue
        assert moment(str(coordinate.render(read))) == read
        try:
            assert coordinate.parse(text) == read
        except InvalidRequestError:
            assert re.fullmatch(PATTERN, text, re.ASCII)


@pytest.mark.parametrize("text", ["2024-05-20", " 2024-05-20 ", "2024-5-20"])
def test_a_day_is_a_moment_without_a_time_of_day(text: str) -> None:
    day = Coordinate.of("t", Kind.DATE)
    assert day.render(day.parse_text(text)) == "2024-05-20"
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        day.parse_text(f"{text.strip()}T00:00")


def test_the_page_lists_forms_that_are_taken_and_refused() -> None:
    table = DOCS.read_text().split("### Texts of times")[1].split("\n## ")[0]
    cells = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    assert len(cells) > 15
    for _, forms, meaning, _ in cells:
        for text in re.findall(r"`([^`]+)`", forms):
            taken = not meaning.strip().startswith("refused")
            try:
                moment(text)
            except ValueError:
                assert not taken, text
            else:
                assert taken, text
