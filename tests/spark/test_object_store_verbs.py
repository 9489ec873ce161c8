"""All commands in a lake on S3, which only `AWS_*` variables lead to, as in a lake in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import kept_lake, lake_verbs
from tests.support.s3_server import BUCKET, Objects, objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.lake_figures import Json

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

Figures = dict[str, dict[str, "Json"]]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(tmp_path_factory.mktemp("objects")) as found:
        yield found


@pytest.fixture(scope="module")
def there(s3: Objects, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    folder = tmp_path_factory.mktemp("there")
    return lake_verbs.in_driver(f"s3a://{BUCKET}/verbs/lake", s3.variables, folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return lake_verbs.in_driver(f"{kept_lake.ROOT}/lake", {}, tmp_path_factory.mktemp("here"))


def test_each_command_gives_the_same_there(there: Figures, here: Figures) -> None:
    assert list(there["commands"]) == list(here["commands"])
    for name, wanted in here["commands"].items():
        assert there["commands"][name] == wanted, name


def test_each_table_has_the_same_contents_there(there: Figures, here: Figures) -> None:
    assert sorted(there["tables"]) == sorted(here["tables"])
    for name, wanted in here["tables"].items():
        for part in ("columns", "partitions", "rows"):
            assert there["tables"][name][part] == wanted[part], (name, part)


def test_what_was_done_was_done(here: Figures) -> None:
    """The comparison is not one of errors."""
    codes = {name: found.get("code", 0) for name, found in here["commands"].items()}
    failed = {name for name, code in codes.items() if code}
    cheap = f"replay orders --into cheap --until {kept_lake.UNTIL}"
    assert failed == {"refused", cheap}


def capstan(variables: Mapping[str, str], *words: str) -> Json:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    program = Path(sys.executable).with_name("capstan")
    done = subprocess.run(
        [str(program), "--json", *words],
        env={**own, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Json = json.loads(done.stdout)
    return found


def test_doctor_tries_a_lake_there(s3: Objects) -> None:
    found = capstan(s3.variables, "--lake", f"s3a://{BUCKET}/new/lake", "doctor", "--deep")
    assert found["ok"]
    # Arrow leaves a mark of the folder when it deletes a file.
    assert set(s3.keys("new/lake")) <= {"new/lake/"}


def test_the_demo_runs_there(s3: Objects) -> None:
    found = capstan(s3.variables, "--lake", f"s3a://{BUCKET}/demo", "demo")
    steps = found["steps"]
    assert isinstance(steps, list)
    captured = next(step for step in steps if step["step"] == "capture")
    assert (captured["fed"], sum(captured["late"].values())) == (336_776, 25)
    assert [step["changed"] for step in steps] == [True, True, False, True, True, True]
