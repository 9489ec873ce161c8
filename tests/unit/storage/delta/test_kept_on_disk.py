"""Values of tables on disk: private, bounded, and checked before they are used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from capstan.storage.delta import kept_on_disk
from capstan.storage.delta.kept_on_disk import KeptValue, KeptValues

VALUE = KeptValue({"cut": [3, 3]}, {"counts": pa.table({"n": [1, 2]}), "none": pa.table({})})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "read"


def test_the_next_process_finds_a_value_with_its_state(folder: Path) -> None:
    KeptValues(folder).save("sums", "/lake/t", "7.json 1", VALUE)
    assert KeptValues(folder).load("sums", "/lake/t") == ("7.json 1", VALUE)
    KeptValues(folder).save("sums", "/lake/t", "8.json 2", KeptValue({}))
    assert KeptValues(folder).load("sums", "/lake/t") == ("8.json 2", KeptValue({}))
    assert KeptValues(folder).load("rows", "/lake/t") is None
    assert KeptValues(folder).load("sums", "/lake/u") is None


def test_nobody_else_may_look_at_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        KeptValues(folder).save("sums", "/lake/t", "1", VALUE)
    finally:
        os.umask(before)
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_open_is_not_used(folder: Path, mode: int) -> None:
    kept = KeptValues(folder)
    kept.save("sums", "/lake/t", "1", VALUE)
    folder.chmod(mode)
    assert kept.load("sums", "/lake/t") is None
    kept.save("sums", "/lake/u", "1", VALUE)
    assert len(list(folder.iterdir())) == 1
    folder.chmod(0o700)
    assert kept.load("sums", "/lake/t") is not None


def test_a_folder_elsewhere_is_not_followed(tmp_path: Path, folder: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.parent.mkdir()
    folder.symlink_to(elsewhere)
    KeptValues(folder).save("sums", "/lake/t", "1", VALUE)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_cannot_be_made_keeps_nothing(folder: Path) -> None:
    folder.parent.parent.joinpath("cache").write_text("a file")
    KeptValues(folder).save("sums", "/lake/t", "1", VALUE)
    assert KeptValues(folder).load("sums", "/lake/t") is None


def flipped(content: bytes) -> bytes:
    at = content.index(b"ARROW") if b"ARROW" in content else len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda _: b"PK not a zip", lambda content: content[:-40], flipped]
)
def test_damaged_values_are_none(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    KeptValues(folder).save("sums", "/lake/t", "1", VALUE)
    [file] = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert KeptValues(folder).load("sums", "/lake/t") is None


def test_values_of_another_table_version_or_format_are_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptValues(folder)
    kept.save("sums", "/lake/t", "1", VALUE)
    [file] = folder.iterdir()
    # Somebody has put it in the place of another one.
    kept.save("sums", "/lake/u", "1", VALUE)
    [other] = {*folder.iterdir()} - {file}
    other.write_bytes(file.read_bytes())
    assert kept.load("sums", "/lake/u") is None
    monkeypatch.setattr(kept_on_disk, "FORMAT", 0)
    assert kept.load("sums", "/lake/t") is None


def test_no_name_becomes_part_of_a_path(folder: Path) -> None:
    KeptValues(folder).save("../../sums", "s3a://bucket/../../etc/passwd", "1", VALUE)
    [file] = folder.iterdir()
    assert file.stem.isalnum()
    assert KeptValues(folder).load("../../sums", "s3a://bucket/../../etc/passwd") is not None


def test_values_that_were_written_first_make_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        KeptValues(folder).save("sums", f"/lake/{number}", "1", VALUE)
        [file] = folder.glob("*") if number == 0 else [max(folder.iterdir(), key=os.path.getctime)]
        os.utime(file, (number, number))
    size = file.stat().st_size
    monkeypatch.setattr(kept_on_disk, "_MOST_BYTES", 3 * size)
    KeptValues(folder).save("sums", "/lake/8", "1", VALUE)
    left = [n for n in range(9) if KeptValues(folder).load("sums", f"/lake/{n}")]
    assert left == [5, 6, 7, 8]
    monkeypatch.setattr(kept_on_disk, "_MOST_VALUE", size - 1)
    KeptValues(folder).save("sums", "/lake/9", "1", VALUE)
    assert KeptValues(folder).load("sums", "/lake/9") is None
