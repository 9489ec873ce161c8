"""A disk that is full, and one that cannot be written: told, nothing half done, and gone on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.support import child_drivers
from tests.support.small_stream import SINCE, STAGED

pytestmark = [pytest.mark.rest, pytest.mark.timeout(1800)]

# Mounts of the driver's own, that nobody else sees: a small disk, and a lake that is read only.
OWN = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
MOUNTS = """
mkdir -p "$1"
mount -t tmpfs -o size=256k lake "$1"
mount --bind "$2" "$2"
mount -o remount,bind,ro "$2"
shift 2
exec "$@"
"""
SIZES = {"file": 2**20, "full": 10, "share": 1, "least": 1, "many": 2}
"""Sizes by which what has settled of the little tape is worth to be put together."""

FREE = (16, 32, 64)
"""KiB that are free when a replay begins: it ends at another place with each."""

FULL, NO_ACCESS = "CAP-DISK-FULL", "CAP-NO-ACCESS"


@pytest.fixture(scope="module")
def found(empty, recorded, tmp_path_factory):
    """What became of each step, by its name."""
    small, locked = empty(), recorded()
    table = {"table": "staged"}
    steps = {
        "full": small.step("capture"),
        "room": small.step("remount", options="size=64m"),
        "captured": small.step("capture"),
        "tape": small.step("contents", **table),
        **{
            name: step
            for free in FREE
            for name, step in (
                (f"filled-{free}", small.step("fill", free=free * 1024)),
                (f"starved-{free}", small.step("replay", request=STAGED)),
            )
        },
        "emptied": small.step("fill", free=2**25),
        "fed": small.step("replay", request=STAGED),
        "again": small.step("contents", **table),
        "unwritten": locked.step("replay", request=STAGED),
        "uncaptured": locked.step("capture", reseat=True),
        "unkept": locked.step("maintain", sizes=SIZES),
        "unretired": locked.step("retire", before=SINCE),
        "still": locked.step("contents", **table),
        "unlocked": locked.step("remount", options="bind,rw"),
        "replayed": locked.step("replay", request=STAGED),
        "kept": locked.step("maintain", sizes=SIZES),
        "table": locked.step("contents", **table),
    }
    folder = tmp_path_factory.mktemp("ends")
    script = [replace(step, until=str(folder / name)) for name, step in steps.items()]
    before = [*OWN, MOUNTS, "sh", small.lake.root, locked.lake.root]
    child = child_drivers.start(tmp_path_factory.mktemp("starved") / "driver", script, before)
    assert child.process.wait(1200) == 0, child.printed()
    ended = {name: step.ended for name, step in zip(steps, script, strict=True)}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in ended.items()}


def ids(tape) -> Counter[int]:
    """How often each row that was fed is on tape or among the late ones."""
    rows = (json.loads(row) for row in (*tape["records"], *tape["late"]))
    return Counter(row["data"]["id"] for row in rows)


@pytest.mark.nightly
def test_a_full_disk_is_told_and_with_room_it_goes_on(found, undisturbed) -> None:
    assert (found["full"]["exit"], found["full"]["error"]) == (5, FULL)
    assert "free some space" in found["full"]["hint"]
    assert (found["room"]["exit"], found["captured"]["exit"]) == (0, 0)
    # Which files a batch takes may differ: the source may have gone on when Spark could not.
    assert ids(found["tape"]["tape"]) == ids(undisturbed)


def test_a_full_disk_publishes_nothing_and_room_resumes(found) -> None:
    for free in FREE:
        starved = found[f"starved-{free}"]
        assert (starved["exit"], starved["error"]) == (5, FULL), starved
    assert found["tape"]["rows"] == []
    certificate, again = found["fed"]["certificate"], found["again"]
    assert (certificate["published"], certificate["audit"]["passed"]) == (True, True)
    assert len(again["rows"]) == certificate["records"] > 0
    assert len(again["standing"]) == 1
    assert again["tape"] == found["tape"]["tape"]


def test_a_lake_that_cannot_be_written_stays_as_it_is(found, undisturbed, whole) -> None:
    for name in ("unwritten", "uncaptured", "unkept", "unretired"):
        assert (found[name]["exit"], found[name]["error"]) == (5, NO_ACCESS)
        assert "path" in found[name], found[name]
    assert found["still"]["tape"] == undisturbed
    assert (found["unlocked"]["exit"], found["replayed"]["exit"]) == (0, 0)
    assert (found["kept"]["exit"], found["table"]["tape"]) == (0, undisturbed)
    assert found["kept"]["rewritten"] > 0
    table = {name: found["table"][name] for name in ("rows", "standing")}
    assert table == json.loads(json.dumps(whole["staged"], default=str))
