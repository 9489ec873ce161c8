"""Delta's jars, Kafka's and those of S3: what counts as fetched, and what does not."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from capstan.errors import SystemFailureError
from capstan.spark.project_home import project_home, set_up
from capstan.spark.setup import jars
from capstan.spark.setup.jars import AVRO, DELTA, KAFKA, S3, Jars, delta_jars, spark_jars
from capstan.spark.setup.local_submit import pyspark_home
from capstan.spark.setup.spark_series import DELTA_VERSION, NEWEST

ROOT = Path(__file__).parents[4]


def make_jar(path: Path, text: str) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(zipfile.ZipInfo("content"), text * 100)
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and two published jars known by their hashes; Ivy is not asked."""
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    published = {
        name: hashlib.sha256(make_jar(tmp_path / "published" / name, name)).hexdigest()
        for name in ("one.jar", "two.jar")
    }
    lines = [
        f"{digest}  {folder}/{name}\n"
        for folder in ("jars", "kafka", "s3", "avro")
        for name, digest in published.items()
    ]
    hashes = tmp_path / "published.sha256"
    hashes.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(jars, "DELTA", replace(DELTA, hashes=hashes))
    return tmp_path / ".cache"


def resolver(
    monkeypatch: pytest.MonkeyPatch, cache: Path, brings: tuple[str, ...] = ("one.jar", "two.jar")
) -> list[Path]:
    """Stand in for Spark's resolver; returns the list of its calls."""
    calls: list[Path] = []

    def resolve(_: Jars, ivy: Path) -> None:
        calls.append(ivy)
        (ivy / "jars").mkdir(parents=True)
        for name in brings:
            (ivy / "jars" / name).write_bytes((cache.parent / "published" / name).read_bytes())

    monkeypatch.setattr(jars, "_resolve", resolve)
    return calls


def fetch() -> tuple[Path, ...]:
    return jars.fetch(jars.DELTA)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_jars_that_are_missing_are_an_error_with_the_way_out(cache: Path) -> None:
    with pytest.raises(SystemFailureError, match="CAP-JARS") as caught:
        delta_jars()
    assert caught.value.hint == "run `make setup`"
    assert caught.value.fields["missing"] == ["one.jar", "two.jar"]


def test_fetching_leaves_exactly_the_jars_and_asks_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = resolver(monkeypatch, cache)
    assert fetch() == (cache / "jars" / "one.jar", cache / "jars" / "two.jar")
    assert fetch() == delta_jars()
    assert len(calls) == 1
    assert names(cache / "jars") == ["one.jar", "two.jar"]


def test_a_jar_cut_short_counts_as_missing_and_is_mended(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, cache)
    fetch()
    jar = cache / "jars" / "one.jar"
    whole = jar.read_bytes()
    jar.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SystemFailureError, match=re.escape("one.jar")):
        delta_jars()
    fetch()
    assert jar.read_bytes() == whole


def test_a_jar_with_other_content_is_replaced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, cache)
    make_jar(cache / "jars" / "one.jar", "another version")
    make_jar(cache / "jars" / "two.jar", "two.jar")
    fetch()
    assert (cache / "jars" / "one.jar").read_bytes() == (
        cache.parent / "published" / "one.jar"
    ).read_bytes()


def test_what_an_interrupted_fetch_left_is_thrown_away(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = resolver(monkeypatch, cache)
    (cache / "ivy" / "jars").mkdir(parents=True)
    (cache / "ivy" / "jars" / "one.jar").write_bytes(b"half")
    (cache / "ivy" / "cache").mkdir()
    (cache / "jars").mkdir()
    (cache / "jars" / "one.jar.4711").write_bytes(b"half")
    fetch()
    assert len(calls) == 1
    assert names(cache / "jars") == ["one.jar", "two.jar"]
    assert not (cache / "ivy" / "cache").exists()


def test_fetched_jars_come_from_the_resolver_s_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = resolver(monkeypatch, cache)
    jars._resolve(jars.DELTA, cache / "ivy")
    fetch()
    assert len(calls) == 1


def test_an_incomplete_resolution_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, cache, brings=("one.jar",))
    with pytest.raises(SystemFailureError, match="differ from the published ones: two.jar"):
        fetch()
    with pytest.raises(SystemFailureError, match="CAP-JARS"):
        delta_jars()


@pytest.mark.parametrize(("name", "given"), [("KAFKA", KAFKA), ("S3", S3), ("AVRO", AVRO)])
def test_a_connector_is_there_whole_or_not_at_all(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: Jars
) -> None:
    resolver(monkeypatch, cache)
    fetch()
    expected = replace(given, hashes=jars.DELTA.hashes)
    monkeypatch.setattr(jars, name, expected)
    assert expected.fetched() == ()
    ours = jars.log_store_jar()
    assert spark_jars() == (*delta_jars(), ours)
    make_jar(cache / expected.name / "one.jar", "one.jar")
    with pytest.raises(SystemFailureError, match=rf"CAP-JARS.*{expected.name}: two.jar") as caught:
        spark_jars()
    assert caught.value.hint == f"run {set_up(expected.connector)}"
    actual = jars.fetch(expected)
    assert spark_jars() == (*delta_jars(), ours, *actual)
    assert {path.parent.name for path in actual} == {expected.name}


def test_another_log_store_under_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / jars.LOG_STORE_JAR.parent.name / jars.LOG_STORE_JAR.name
    monkeypatch.setattr(jars, "LOG_STORE_JAR", other)
    for content in (None, "other"):
        if content is not None:
            make_jar(other, content)
        with pytest.raises(SystemFailureError, match="CAP-JARS: missing or changed: .*store.jar"):
            jars.log_store_jar()
        jars._digest.cache_clear()


def test_the_avro_source_needs_nothing_that_spark_lacks() -> None:
    assert [name.rpartition("-")[0] for name in AVRO.files] == ["org.apache.spark_spark-avro_2.13"]
    for name in ("avro", "xz", "scala-parallel-collections_2.13"):
        assert list((pyspark_home() / "jars").glob(f"{name}-[0-9]*.jar"))


def test_the_reason_of_a_failed_fetch_is_the_line_that_says_it() -> None:
    printed = "Ivy Default Cache set to: x\n:: resolving\nServer access error at url y\nat z"
    assert jars._reason(printed) == "Server access error at url y"
    assert jars._reason("") == "no output"


def test_what_is_named_is_fetched_or_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(jars, "main", lambda found=DELTA: fetched.append(found.name) or 0)
    assert [jars._fetch_named(names) for names in ([], ["kafka"], ["s3", "kafka"])] == [0, 0, 0]
    assert fetched == ["jars", "kafka", "s3", "kafka"]
    assert jars._fetch_named(["kafka", "kafak"]) == 2
    assert capsys.readouterr().err == "jars: kafak: there are kafka, s3, avro\n"
    assert len(fetched) == 4


def test_the_versions_are_those_of_the_lock() -> None:
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"delta-spark=={DELTA_VERSION} " in locked
    assert f"pyspark=={NEWEST.connectors} " in locked


def test_locks_have_hashes_and_name_no_index() -> None:
    locks = sorted(ROOT.glob("requirements*.lock"))
    assert [lock.stem for lock in locks] == [file.stem for file in sorted(ROOT.glob("*.in"))]
    for lock in locks:
        text = lock.read_text(encoding="utf-8")
        packages = re.split(r"\n(?=\S)", text.strip())
        assert packages
        for package in packages:
            assert re.match(r"[\w.\[\]-]+==\S+", package), package
            assert "--hash=sha256:" in package, package
        assert "://" not in text
        assert "--index" not in text


def test_the_project_is_where_the_package_lies_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CAPSTAN_HOME", raising=False)
    assert project_home() == ROOT
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    assert project_home() == tmp_path


def test_checkpoints_outside_s3_need_no_class_of_s3() -> None:
    """Spark loads their class for each checkpoint, and the connector need not be there."""
    with zipfile.ZipFile(jars.LOG_STORE_JAR) as jar:
        classes = {name: jar.read(name) for name in jar.namelist()}
    uses = {name for name, code in classes.items() if b"org/apache/hadoop/fs/s3a/" in code}
    assert "capstan/delta/ConditionalS3LogStore.class" in uses
    assert not [name for name in uses if "CheckpointFiles" in name or "Put" in name]
