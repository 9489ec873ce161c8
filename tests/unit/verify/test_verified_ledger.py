"""What is known of earlier verifications is read from few files, however many there were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape.index import opened_commits
from capstan.storage.tape.tape import Cut, newest_cut, open_tape
from capstan.verify.verified_ledger import LOOK_BACK, load_verified, newest_rows, record_verified
from tests.support.bulk_tapes import counting, lay_index, lay_verified

MANY = [100, pytest.param(10_000, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("count", MANY)
def test_repeated_verification_reads_one_file_per_worker(tmp_path: Path, count: int) -> None:
    lake = Lake.at(tmp_path)
    lay_index(lake, "little", count)
    lay_verified(lake, "little", count)
    tape = open_tape(lake, "little")
    with counting() as opened:
        earlier = load_verified(lake, tape, newest_cut(tape), [0])
    assert opened["verified"] == 1
    assert {n: start.commit for n, start in earlier.starts.items()} == {0: count - 1}
    with counting() as opened:
        earlier = load_verified(lake, tape, Cut(count // 2, count // 2), [0])
    assert opened["verified"] == 1
    assert earlier.starts[0].commit == count // 2


@pytest.mark.parametrize("count", MANY)
def test_what_lies_far_back_is_verified_again_and_still_shown(tmp_path: Path, count: int) -> None:
    lake = Lake.at(tmp_path)
    lay_index(lake, "little", count)
    lay_verified(lake, "little", count)
    tape = open_tape(lake, "little")
    with counting() as opened:
        earlier = load_verified(lake, tape, newest_cut(tape))
    assert opened["verified"] == LOOK_BACK
    assert (set(earlier.starts), earlier.known) == ({0}, -1)
    cut = newest_cut(tape)
    shown = newest_rows(lake, tape, cut.commit, opened_commits(tape, cut), ["at"])
    assert {worker: row["commit"] for worker, row in shown.items()} == {0: count - 1, 1: 0, None: 0}


def test_each_worker_resumes_at_its_own_newest_verification(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_index(lake, "little", 9)
    lay_verified(lake, "little", 9)
    tape = open_tape(lake, "little")
    earlier = load_verified(lake, tape, newest_cut(tape))
    assert {n: start.commit for n, start in earlier.starts.items()} == {0: 8, 1: 0}
    assert earlier.known == 0
    assert load_verified(lake, tape, Cut(4, 4)).starts[0].commit == 4


def test_the_note_of_a_verification_names_its_stream(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_index(lake, "little", 1)
    tape = open_tape(lake, "little")
    record_verified(lake, tape, newest_cut(tape), {}, known=True)
    [commit] = delta.open_table(lake.ledger("verified")).history(1)
    note = json.loads(commit["userMetadata"])["capstan"]
    assert (note["ledger"], note["stream"]) == ("verified", "little")
