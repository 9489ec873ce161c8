"""Places of files, as paths and as the URIs that Spark and others write."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from capstan.tape.lake import exists, sizes_of


@pytest.mark.parametrize(
    "name", ["a", "ä", "日本", "a b", "a%b", "é%20", "a+b", "a=b", "x#y", "q?"]
)
def test_a_place_is_the_same_as_a_path_and_as_a_uri(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1234")
    path = str(tmp_path / name)
    # Spark leaves letters as they are; other writers of URIs do not.
    by_spark = "".join(quote(c, safe="/=+") if c.isascii() else c for c in path)
    for place in (path, (tmp_path / name).as_uri(), f"file://{by_spark}"):
        assert sizes_of([place]) == {place: 4}
        assert exists(place)
