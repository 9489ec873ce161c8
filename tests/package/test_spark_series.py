"""What is written exactly once stays so on each minor version of Spark."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from capstan.spark.setup.spark_series import NEWEST, SERIES
from tests.package.conftest import ROOT
from tests.support.venvs import new_venv

pytestmark = pytest.mark.nightly

KILLS = ("tests/crash/test_capture_killed.py", "tests/crash/test_replay_killed.py")
RACE = "tests/spark/test_s3_commits.py"
REFUSED = "test_a_hadoop_without_conditional_puts_is_refused"


@pytest.mark.parametrize(
    ("series", "writes_s3"), [(each.name, each.writes_s3) for each in SERIES if each is not NEWEST]
)
def test_kills_and_races_end_as_on_the_newest(
    tmp_path: Path, series: str, *, writes_s3: bool
) -> None:
    python = str(new_venv(tmp_path / "venv", "3.11", f"pyspark=={series}.*") / "python")
    # All else is what this interpreter has; packages of its own come first.
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip()
    other = sysconfig.get_path("purelib")
    Path(own, "of_the_tests.pth").write_text(f"{other}\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}

    def run(*words: str) -> None:
        command = [python, "-m", *words]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=3600)

    run("capstan.spark.setup.jars")
    run("capstan.spark.setup.jars", "s3")
    tests = (*KILLS, RACE) if writes_s3 else (*KILLS, f"{RACE}::{REFUSED}")
    run("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not bench", *tests)
