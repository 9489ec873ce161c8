"""The class archive: whose it is, where it lies, how it is made; with a Spark that is a fake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capstan.errors import SystemFailureError
from capstan.spark import submit_options
from capstan.spark.setup import class_archive, local_submit
from capstan.spark.setup.jars import spark_jars
from capstan.spark.setup.java import Java, find_java

# As `spark-submit` is called: it writes what the JVM would at its end, or fails.
SPARK = """#!{python}
import os, sys
from pathlib import Path
assert Path(sys.argv[-1]).is_dir() and Path(sys.argv[-2]).name == "warmup.py", sys.argv
assert os.environ["SPARK_HOME"] == str(Path(__file__).parents[1])
options = next(word for word in sys.argv if word.startswith("spark.driver.extraJavaOptions="))
[path] = [w.partition("=")[2] for w in options.split() if w.startswith("-XX:ArchiveClassesAtExit=")]
print("the reason")
if {writes}:
    Path(path).write_text("classes")
sys.exit({code})
"""


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of Spark with one jar, and an empty cache with Delta's jars."""
    home = tmp_path / "pyspark"
    (home / "jars").mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "jars" / "spark.jar").write_text("a", encoding="utf-8")
    delta = tmp_path / "delta.jar"
    delta.write_text("b", encoding="utf-8")
    for module in (class_archive, local_submit):
        monkeypatch.setattr(module, "pyspark_home", lambda: home)
        monkeypatch.setattr(module, "spark_home", lambda java: java.home)
    monkeypatch.setattr(class_archive, "spark_jars", lambda: (delta,))
    monkeypatch.setattr(class_archive, "cache_folder", lambda: tmp_path / "cache")
    answer(home)
    return home


def answer(home: Path, *, code: int = 0, writes: bool = True) -> None:
    program = home / "bin" / "spark-submit"
    text = SPARK.format(python=sys.executable, code=code, writes=writes)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)


def test_without_pyspark_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SystemFailureError, match="PySpark is not installed") as caught:
        local_submit.pyspark_home()
    assert caught.value.code == "CAP-SPARK"


def test_an_archive_is_made_once_and_others_go(spark: Path) -> None:
    printed: list[str] = []
    stale = class_archive.archive_path(find_java()).with_name("other.jsa")
    stale.parent.mkdir(parents=True)
    stale.write_text("", encoding="utf-8")
    path = class_archive.make_archive(printed.append)
    assert path == class_archive.archive_path(find_java())
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert path.read_text(encoding="utf-8") == "classes"
    answer(spark, code=1)
    assert class_archive.make_archive(printed.append) == path
    assert len(printed) == 1


@pytest.mark.parametrize(("code", "writes"), [(1, True), (0, False), (5, False)])
def test_a_training_that_fails_leaves_nothing(spark: Path, code: int, writes: bool) -> None:
    answer(spark, code=code, writes=writes)
    with pytest.raises(
        SystemFailureError, match="CAP-ARCHIVE: cannot create the class archive: the reason"
    ):
        class_archive.make_archive(lambda _: None)
    assert list(class_archive.archive_path(find_java()).parent.iterdir()) == []


def test_an_archive_belongs_to_a_java_and_to_jars(spark: Path, tmp_path: Path) -> None:
    java = Java(tmp_path, "17.0.1", "JAVA_HOME")
    paths = {
        class_archive.archive_path(java),
        class_archive.archive_path(Java(tmp_path, "17.0.2", "PATH")),
    }
    paths.add(class_archive.archive_path(Java(tmp_path / "other", "17.0.1", "PATH")))
    assert class_archive.archive_path(Java(tmp_path, "17.0.1", "PATH")) in paths
    (spark / "jars" / "more.jar").write_text("", encoding="utf-8")
    paths.add(class_archive.archive_path(java))
    (spark / "jars" / "more.jar").write_text("longer", encoding="utf-8")
    paths.add(class_archive.archive_path(java))
    assert len(paths) == 5


def test_without_an_archive_there_is_no_option(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java()
    assert class_archive.archive_options(java) == ""
    path = class_archive.make_archive(lambda _: None)
    words = class_archive.archive_options(java).split()
    assert words[0] == f"-XX:SharedArchiveFile={path}"
    # What does not fit is passed over, and without a word on the job's output.
    assert {"-Xshare:auto", "-Xlog:cds=off"} <= set(words)
    path.write_text("", encoding="utf-8")
    assert class_archive.archive_options(java) == ""
    (spark / "jars" / "spark.jar").unlink()
    assert class_archive.archive_options(java) == ""


def test_only_local_jobs_map_the_class_archive(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_options, "archive_options", lambda _: "-XX:SharedArchiveFile=x")
    local, far = submit_options.submission("local[2]"), submit_options.submission("spark://m:7077")
    option = "spark.driver.extraJavaOptions"
    assert "SharedArchiveFile" in local.conf[option]
    assert "SharedArchiveFile" not in far.conf[option]
    assert local.jars == ""
    assert far.jars.count(".jar") == len(spark_jars())
    assert "spark.driver.extraClassPath" not in far.conf
    assert "SPARK_LOCAL_IP" not in far.environment


def test_the_spark_of_the_path_is_taken_else_this_python_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = submit_options.submission("local").environment
    own = str(Path(sys.executable).parent)
    assert given["PATH"].endswith(own)
    assert Path(given["SPARK_HOME"], "bin", "spark-submit").is_file()
    other = tmp_path / "spark-submit"
    other.write_text("#!/bin/sh\n", encoding="utf-8")
    other.chmod(0o755)
    given = submit_options.submission("local").environment
    assert given["PATH"].startswith(str(tmp_path))
    assert "SPARK_HOME" not in given
