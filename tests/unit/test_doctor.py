"""What the doctor says of a machine, without starting Spark."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from capstan import doctor
from capstan.doctor import Finding, diagnose
from capstan.errors import SystemFailureError
from capstan.spark.java import Java


def of(findings: list[Finding], what: str) -> Finding:
    return next(finding for finding in findings if finding.what == what)


def test_a_machine_that_is_set_up_has_nothing_wrong(tmp_path: Path) -> None:
    findings = diagnose(str(tmp_path))
    assert [finding for finding in findings if not finding.ok] == []
    assert all(finding.found and not finding.mend for finding in findings)
    assert of(findings, "delta-spark").found == "4.4.0"
    assert of(findings, "Lake").found == f"{tmp_path} is writable"
    assert list(tmp_path.iterdir()) == []


def test_no_java_is_said_with_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_say: object) -> Java:
        raise SystemFailureError("CAP-JAVA", "there is none", "install one")

    monkeypatch.setattr(doctor, "find_java", none)
    assert of(diagnose(None), "Java") == Finding("Java", False, "there is none", "install one")


def test_missing_jars_are_said_with_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    found = of(diagnose(None), "Delta jars")
    assert not found.ok
    assert found.mend == "run `make setup`"


@pytest.mark.parametrize(
    ("package", "version"), [("pandas", "3.1.1"), ("pyspark", "4.1.0"), ("delta-spark", "4.3.0")]
)
def test_a_version_that_does_not_fit_is_wrong(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str
) -> None:
    real = metadata.version
    monkeypatch.setattr(
        doctor.metadata, "version", lambda name: version if name == package else real(name)
    )
    found = of(diagnose(None), package)
    assert not found.ok
    assert version in found.found
    assert found.mend


def test_a_package_that_is_not_there_is_wrong_but_airflow_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    findings = diagnose(None)
    assert not of(findings, "pyarrow").ok
    assert of(findings, "Airflow").ok
    assert "not installed" in of(findings, "Airflow").found


def test_a_lake_that_is_not_there_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    lake = tmp_path / "a" / "lake"
    found = of(diagnose(str(lake)), "Lake")
    assert found.ok
    assert "can be created" in found.found
    assert not lake.parent.exists()


def test_a_lake_below_a_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for lake in (tmp_path / "file", tmp_path / "file" / "lake"):
        found = of(diagnose(str(lake)), "Lake")
        assert not found.ok
        assert found.mend


def test_a_lake_that_cannot_be_written_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = of(diagnose(str(tmp_path)), "Lake")
    assert not found.ok
    assert "cannot be written" in found.found


def test_a_lake_of_an_unknown_kind_is_wrong_in_one_line() -> None:
    found = of(diagnose("nowhere://lake"), "Lake")
    assert not found.ok
    assert found.found.startswith("nowhere://lake: ")
    assert "\n" not in found.found


def test_a_lake_behind_a_uri_is_written_and_left_clean(tmp_path: Path) -> None:
    found = of(diagnose(tmp_path.as_uri()), "Lake")
    assert found.ok
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type(doctor.shutil.disk_usage(tmp_path))(total=100, used=90, free=10)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place: usage)
    assert not of(diagnose(str(tmp_path)), "Disk").ok
