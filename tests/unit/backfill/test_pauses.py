"""Who has paused the backfills of a replay: the newest row counts, and no row says so twice."""

from __future__ import annotations

from pathlib import Path

from capstan.backfill.pauses import Pause, set_paused
from capstan.storage.lake import Lake
from capstan.storage.ledger.made_by import MadeBy, making
from capstan.storage.ledger.tables import read_rows


def test_the_newest_row_of_a_replay_counts(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    assert Pause.read(lake, "copy") is None
    assert not set_paused(lake, "copy", paused=False)
    assert list(tmp_path.iterdir()) == []
    for user, paused, because in (("ada", True, " a move "), ("bea", False, ""), ("cy", True, "")):
        with making(MadeBy(user=user)):
            assert set_paused(lake, "copy", paused=paused, because=because)
            assert not set_paused(lake, "copy", paused=paused, because="again")
    rows = read_rows(lake, "pauses")
    assert [(row["by"], row["paused"], row["because"]) for row in rows] == [
        ("ada", True, "a move"), ("bea", False, ""), ("cy", True, ""),
    ]  # fmt: skip
    pause = Pause.read(lake, "copy")
    assert pause is not None
    assert str(pause) == f"paused by cy since {rows[-1]['at']:%Y-%m-%d %H:%M:%S} UTC"
    assert pause.to_json() == {**rows[-1], "at": rows[-1]["at"].isoformat()}
    assert Pause.read(lake, "other") is None
