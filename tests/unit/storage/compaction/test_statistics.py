"""The statistics of a merged file, by those of the files that it replaces."""

from __future__ import annotations

from datetime import UTC, date, datetime

from capstan.storage.compaction.statistics import merged_statistics

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def file(
    rows: int, nulls: dict[str, object], low: object = None, high: object = None
) -> dict[str, object]:
    return {"num_records": rows, "null_count": nulls, "min": low, "max": high}


def test_bounds_are_the_outermost_and_nulls_are_added() -> None:
    low, high = (
        {"n": 3, "t": {"event": NOON}, "d": date(2024, 5, 1)},
        {"n": 7, "t": {"event": NOON}},
    )
    files = [
        file(4, {"n": 0, "t": {"event": 1}, "d": 0}, low, {**high, "d": date(2024, 5, 2)}),
        file(
            2,
            {"n": 0, "t": {"event": 0}, "d": 0},
            {**low, "n": 5},
            {**high, "n": 9, "d": date(1999, 1, 1)},
        ),
    ]
    assert merged_statistics(files) == {
        "numRecords": 6,
        "minValues": {"n": 3, "t": {"event": "2024-05-01T12:00:00.000000Z"}, "d": "2024-05-01"},
        "maxValues": {"n": 9, "t": {"event": "2024-05-01T12:00:00.000000Z"}, "d": "2024-05-02"},
        "nullCount": {"n": 0, "t": {"event": 1}, "d": 0},
    }


def test_a_file_of_nulls_alone_widens_no_bound_and_an_unknown_one_leaves_none() -> None:
    known = file(2, {"n": 1}, {"n": 4}, {"n": 4})
    nulls = file(3, {"n": 3}, {"n": None}, {"n": None})
    merged = merged_statistics([known, nulls])
    assert (merged["minValues"], merged["nullCount"]) == ({"n": 4}, {"n": 4})
    unknown = file(3, {"n": None}, {"n": None}, {"n": None})
    merged = merged_statistics([known, unknown])
    assert (merged["minValues"], merged["nullCount"], merged["numRecords"]) == ({}, {}, 5)


def test_what_json_has_no_text_for_has_no_bound() -> None:
    files = [
        file(1, {"x": 0, "y": 0}, {"x": float("nan"), "y": b"1"}, {"x": float("nan"), "y": b"2"})
    ]
    assert merged_statistics(files)["maxValues"] == {}
