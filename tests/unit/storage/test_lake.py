"""Places of files, as paths and as the URIs that Spark and others write."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from capstan.core.config import check_target
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake, exists, sizes_of
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.storage.tape.worker_choice import resolve_workers
from tests.support.jvmless_lake import lay_tape


def test_a_place_in_s3_has_one_spelling() -> None:
    for scheme in ("s3", "s3a", "s3n"):
        lake = Lake.at(f"{scheme}://shop/lake/")
        assert lake.root == "s3a://shop/lake"
        assert lake.table(f"{scheme}://shop/t") == lake.target(f"{scheme}://shop/t/")
        assert check_target(f"{scheme}://shop/t") == "s3a://shop/t"
        assert Request("orders", f"{scheme}://shop/t").into == "s3a://shop/t"
    assert Lake.at("S3A://shop/lake").root == "s3a://shop/lake"
    assert Lake.at("gs://shop/lake").root == "gs://shop/lake"


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


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a\\b", "a[1]", "a^b", "a|b"])
def test_ambiguous_lake_paths_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-LAKE: a lake cannot be at"):
        Lake.at(f"/data/{name}")
    with pytest.raises(InvalidRequestError, match="CAP-NAME: .*cannot be a target: .*backslash"):
        check_target(f"/data/{name}")
    assert Lake.at("/data/100% of it").root == check_target("/data/100% of it")


@pytest.mark.parametrize(
    ("labels", "chosen", "workers"),
    [
        (["a", "b"], ["b", "0"], [1, 0]),
        (["0", "1", "2"], ["2", "0"], [2, 0]),
        (["a", "7"], ["7"], [1]),
        # Number 1 is the worker of label 3: what is meant by 1 would hang on what has come.
        (["2", "3", "a"], ["3", "2"], [1, 0]),
        (["2", "3", "a"], ["1"], None),
        (["1.0", "2.0", "3.0"], ["1"], None),
        (["1.0", "2.0", "3.0"], ["2.0", "1.0"], [1, 0]),
        ([str(n) for n in range(1, 100)], ["0"], None),
    ],
)
def test_a_number_is_a_label_where_labels_are_numbers(
    tmp_path: Path, labels: list[str], chosen: list[str], workers: list[int] | None
) -> None:
    lay_tape(Lake.at(tmp_path), "s", labels, [], None)
    tape = open_tape(Lake.at(tmp_path), "s")
    if workers is not None:
        assert list(resolve_workers(tape, newest_cut(tape), chosen)) == workers
        return
    with pytest.raises(
        InvalidRequestError, match=rf"CAP-WORKER: .*no worker '{chosen[0]}': it has"
    ) as no:
        resolve_workers(tape, newest_cut(tape), chosen)
    assert "number" not in no.value.hint
    assert len(no.value.message) < 200
