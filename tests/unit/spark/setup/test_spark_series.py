"""The minor versions of Spark: which is installed, and what goes with it."""

from __future__ import annotations

import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from capstan.errors import SystemFailureError
from capstan.spark.setup import jars, spark_series
from capstan.spark.setup.local_submit import pyspark_home
from capstan.spark.setup.spark_series import (
    NEWEST,
    SERIES,
    installed_series,
    installed_version,
    require_series,
)

ROOT = Path(__file__).parents[4]


def install(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Let a place be the only one that has a pyspark."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(place)])
    installed_series.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> object:
    yield
    installed_series.cache_clear()


@pytest.mark.parametrize(
    ("version", "expected"),
    [("4.0.0", "4.0"), ("4.1.12", "4.1"), ("4.2.1", "4.2"), ("4.1.0.dev1", "4.1")],
)
def test_a_version_belongs_to_its_minor_version(version: str, expected: str) -> None:
    assert require_series(version).name == expected


@pytest.mark.parametrize("version", ["3.5.1", "4.3.0", "4.10.0", "4", ""])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(SystemFailureError, match="CAP-SPARK-VERSION: .* but on 4.0 to 4.2"):
        require_series(version)


@pytest.mark.parametrize("archived", [False, True])
def test_the_installed_version_is_found_in_a_folder_and_in_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, archived: bool
) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    (package / "version.py").write_text("__version__: str = '4.1.3'\n")
    place = tmp_path
    if archived:
        place = tmp_path / "pyspark.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for path in package.iterdir():
                archive.write(path, f"pyspark/{path.name}")
        shutil.rmtree(package)
    install(monkeypatch, place)
    assert installed_version() == "4.1.3"
    assert installed_series().name == "4.1"


def test_without_spark_jars_are_those_of_the_newest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path)
    with pytest.raises(SystemFailureError, match="CAP-SPARK: PySpark is not installed"):
        installed_version()
    assert installed_series() is NEWEST


def test_each_version_has_its_own_jars_by_hash() -> None:
    seen: set[str] = set()
    for series in SERIES:
        delta, kafka, s3, avro = jars.jars_of(series)
        version = spark_series.DELTA_VERSION
        assert f"io.delta_delta-spark_{series.name}_2.13-{version}.jar" in delta.files
        connectors = {name for name in (*kafka.files, *avro.files) if "org.apache.spark" in name}
        assert len(connectors) == 3
        assert all(name.endswith(f"-{series.connectors}.jar") for name in connectors)
        assert series.connectors.startswith(f"{series.name}.")
        assert f"org.apache.hadoop_hadoop-aws-{series.hadoop}.jar" in s3.files
        # All of Amazon's SDK in one jar is fifty times as much.
        assert not [name for name in s3.files if "bundle" in name]
        folders = {group.name for group in (delta, kafka, s3, avro)}
        assert not seen & folders
        seen |= folders


def test_the_table_says_what_the_installed_spark_has() -> None:
    series = require_series(installed_version())
    assert list((pyspark_home() / "jars").glob(f"hadoop-client-api-{series.hadoop}.jar"))
    options = "org/apache/hadoop/fs/Options$CreateFileOptionKeys.class"
    [client] = (pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(client) as classes:
        assert (options in classes.namelist()) == series.writes_s3


def test_patch_versions_are_taken_as_they_appear() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least, most = SERIES[0].name, NEWEST.name.split(".")
    expected = f"pyspark>={least}.1,<{most[0]}.{int(most[1]) + 1}"
    assert expected in project["optional-dependencies"]["spark"]
