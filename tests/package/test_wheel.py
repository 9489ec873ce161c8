"""The wheel: what is in it, and that it works in an empty folder, without the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.package.conftest import ROOT
from tests.support.venvs import new_venv

PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = (("3.11", "4.2"), ("3.12", "4.2"), ("3.13", "4.2"), ("3.11", "4.0"), ("3.13", "4.1"))
"""A Python, and the minor version of Spark that is there before Capstan is installed."""
INDEX_NAME = "capstan-replay"

pytestmark = pytest.mark.rest


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_holds_the_package_and_its_data_alone(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2 and "capstan" in tops, tops
    inside = {name.split("/")[1] for name in names if name.startswith("capstan/")}
    assert not inside & {"bench", "support", "testing", "tests", "workloads"}
    files = {name for name in names if name.startswith("capstan/")}
    package = ROOT / "lib" / "capstan"
    shells = {f"capstan/spark_apps/{path.name}" for path in (ROOT / "spark_apps").glob("*.py")}
    assert len(shells) == 10
    assert files == shells | {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files >= {"capstan/py.typed", "capstan/spark/setup/jars.sha256"}


def test_its_metadata_says_what_it_needs(wheel: Path, names: list[str]) -> None:
    [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        reported = message_from_string(archive.read(metadata).decode())
    assert (reported["Name"], reported["License-Expression"]) == (INDEX_NAME, "Apache-2.0")
    assert metadata.replace("METADATA", "licenses/LICENSE") in names
    extras = set(reported.get_all("Provides-Extra") or ())
    assert extras >= {"spark", "airflow", "kafka", "s3", "demo"}
    needed = [line for line in reported.get_all("Requires-Dist") or () if "extra ==" not in line]
    # Who reads a lake needs no Spark, and nobody gets the tools of the tests.
    heavy = ("pyspark", "airflow", "duckdb", "pytest", "bytewax", "pgserver", "playwright")
    assert not [line for line in needed if line.startswith(heavy)]
    for version in PYTHONS:
        assert f"Programming Language :: Python :: {version}" in reported.get_all("Classifier")


def test_in_an_empty_folder_it_needs_no_repository(wheel: Path, tmp_path: Path) -> None:
    packages, folder = tmp_path / "packages", tmp_path / "empty"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Its dependencies are those of this interpreter; the package itself is the wheel's.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CAPSTAN_", "PYTEST_"))}
    environment = {**kept, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(packages)}
    environment.pop("XDG_CACHE_HOME", None)

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=120,
        )
        return done.stdout

    main = "import sys; from capstan.cli import main; sys.exit(main(sys.argv[1:]))"
    requested = "import capstan, capstan.spark.project_home as h; print(capstan.__file__, "
    place, home, cache = run("-c", f"{requested}h.checkout(), h.cache_folder())").split()
    assert Path(place).is_relative_to(packages)
    assert home == "None"
    assert Path(cache).is_relative_to(tmp_path / "home")
    files = json.loads(run("-c", main, "--json", "init"))["files"]
    assert {file["status"] for file in files} == {"created"}
    assert "usage: replay.py" in run("-m", "capstan.jobs", "replay", "--help")
    submitted = run("-c", "from capstan.jobs import job_file; print(job_file('replay'))").strip()
    assert "usage: replay.py" in run(submitted, "--help")
    # Nothing was written beside the interpreter, or into the working folder, but the project.
    assert sorted(path.name for path in folder.iterdir()) == ["dags", "sample_data"]


@pytest.mark.nightly
@pytest.mark.parametrize(("version", "spark"), SPARKS)
def test_installed_with_its_dependencies_everything_is_green(
    wheel: Path, tmp_path: Path, version: str, spark: str
) -> None:
    bin_folder = new_venv(tmp_path / "venv", version, f"pyspark=={spark}.*")
    pip = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"{wheel}[demo]", "twine"], check=True, timeout=1800)
    subprocess.run([str(bin_folder / "twine"), "check", "--strict", str(wheel)], check=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}

    def capstan(*words: str) -> dict[str, object]:
        command = [str(bin_folder / "capstan"), "--json", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True, timeout=1200
        )
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value

    capstan("init")
    report = capstan("doctor", "--deep")
    assert report["ok"]
    # The Spark that was there was left alone.
    assert f"{spark}." in str(report)
    assert capstan("capture", "orders")["fed"] == 507
    assert capstan("backfill", "revenue_by_day")["done"] == 1
    hours = capstan(
        "replay", "orders", "--into", "orders_by_hour", "--pipeline", "orders_by_hour",
        "--until", "2026-01-12",
    )  # fmt: skip
    assert hours["records"] == 504
    assert capstan("demo", "--lake", "demo")["changed"]
