"""What the doctor says of a machine, without starting Spark."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from capstan.cli import doctor
from capstan.cli.doctor import Diagnosis, diagnose
from capstan.errors import SystemFailureError
from capstan.spark.setup.java import Java
from capstan.spark.setup.spark_series import DELTA_VERSION, installed_series, installed_version


def of(findings: list[Diagnosis], subject: str) -> Diagnosis:
    return next(finding for finding in findings if finding.subject == subject)


def test_a_complete_set_up_has_no_problems(tmp_path: Path) -> None:
    findings = diagnose(str(tmp_path))
    assert [finding for finding in findings if not finding.ok] == []
    assert all(finding.detail and not finding.remedy for finding in findings)
    series = installed_series()
    expected = f"{installed_version()}, with Delta {DELTA_VERSION} and Hadoop {series.hadoop}"
    assert of(findings, "Spark").detail == expected
    assert of(findings, "Lake").detail == f"{tmp_path} is writable"
    assert list(tmp_path.iterdir()) == []


def test_missing_java_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_say: object) -> Java:
        raise SystemFailureError("CAP-JAVA", "there is none", "install one")

    monkeypatch.setattr(doctor, "find_java", none)
    assert of(diagnose(None), "Java") == Diagnosis("Java", False, "there is none", "install one")


def test_missing_jars_come_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    diagnosis = of(diagnose(None), "Delta jars")
    assert not diagnosis.ok
    assert diagnosis.remedy == "run `make setup`"


def test_an_unsupported_version_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda: "3.5.1")
    diagnosis = of(diagnose(None), "Spark")
    assert not diagnosis.ok
    assert diagnosis.detail == "Capstan does not run on Spark 3.5.1, but on 4.0 to 4.2"
    assert diagnosis.remedy


def test_a_package_of_another_delta_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(
        doctor.metadata, "version", lambda name: "4.3.0" if name == "delta-spark" else real(name)
    )
    diagnosis = of(diagnose(None), "delta-spark")
    assert not diagnosis.ok
    assert "4.3.0" in diagnosis.detail
    assert diagnosis.remedy


def test_a_missing_package_is_wrong_except_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    findings = diagnose(None)
    assert not of(findings, "pyarrow").ok
    assert of(findings, "Airflow").ok
    assert "not installed" in of(findings, "Airflow").detail


def test_a_missing_lake_is_fine_and_not_created(tmp_path: Path) -> None:
    lake = tmp_path / "a" / "lake"
    diagnosis = of(diagnose(str(lake)), "Lake")
    assert diagnosis.ok
    assert "can be created" in diagnosis.detail
    assert not lake.parent.exists()


def test_a_lake_below_a_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for lake in (tmp_path / "file", tmp_path / "file" / "lake"):
        diagnosis = of(diagnose(str(lake)), "Lake")
        assert not diagnosis.ok
        assert diagnosis.remedy


def test_a_read_only_lake_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    diagnosis = of(diagnose(str(tmp_path)), "Lake")
    assert not diagnosis.ok
    assert "cannot be written" in diagnosis.detail


def test_a_lake_of_an_unknown_kind_is_wrong_in_one_line() -> None:
    diagnosis = of(diagnose("nowhere://lake"), "Lake")
    assert not diagnosis.ok
    assert diagnosis.detail.startswith("nowhere://lake: ")
    assert "\n" not in diagnosis.detail


def test_a_lake_behind_a_uri_is_written_and_left_clean(tmp_path: Path) -> None:
    diagnosis = of(diagnose(tmp_path.as_uri()), "Lake")
    assert diagnosis.ok
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type(doctor.shutil.disk_usage(tmp_path))(total=100, used=90, free=10)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place: usage)
    assert not of(diagnose(str(tmp_path)), "Disk").ok
    roomy = type(usage)(total=10**12, used=0, free=10**12)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place: roomy)
    assert of(diagnose(str(tmp_path)), "Disk").ok
