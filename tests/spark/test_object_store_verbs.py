"""All commands in a lake on S3, which only `AWS_*` variables lead to, as in a lake in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from tests.support import kept_lake, lake_contents, lake_verbs
from tests.support.driver_under_test import PATIENCE
from tests.support.s3_faults import faulty_process
from tests.support.s3_server import BUCKET, Objects, objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.lake_figures import Json

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

Figures = dict[str, dict[str, "Json"]]

_SHOP = """
streams:
  shop:
    source: {{format: json, path: "{source}", schema: "id long, at timestamp"}}
    workers: {{by: key, columns: [id], count: 2}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 1 day}}
    late: dead-letter
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(tmp_path_factory.mktemp("objects")) as actual:
        yield actual


@pytest.fixture(scope="module")
def there(s3: Objects, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    folder = tmp_path_factory.mktemp("there")
    return lake_verbs.in_driver(f"s3a://{BUCKET}/verbs/lake", s3.variables, folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return lake_verbs.in_driver(f"{kept_lake.ROOT}/lake", {}, tmp_path_factory.mktemp("here"))


def test_each_command_gives_the_same_there(there: Figures, here: Figures) -> None:
    assert list(there["commands"]) == list(here["commands"])
    for name, expected in here["commands"].items():
        assert there["commands"][name] == expected, name


def test_each_table_has_the_same_contents_there(there: Figures, here: Figures) -> None:
    assert sorted(there["tables"]) == sorted(here["tables"])
    for name, expected in here["tables"].items():
        for part in ("columns", "partitions", "rows"):
            assert there["tables"][name][part] == expected[part], (name, part)


def test_what_was_done_was_done(here: Figures) -> None:
    """The comparison is not one of errors."""
    codes = {name: actual.get("code", 0) for name, actual in here["commands"].items()}
    failed = {name for name, code in codes.items() if code}
    cheap = f"replay orders --into cheap --until {kept_lake.UNTIL}"
    assert failed == {"refused", cheap}


def started(variables: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    program = Path(sys.executable).with_name("capstan")
    return subprocess.Popen(
        [str(program), "--json", *words],
        env={**own, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def capstan(variables: Mapping[str, str], *words: str) -> Json:
    return result(started(variables, *words))


def result(process: subprocess.Popen[str]) -> Json:
    printed, errors = process.communicate()
    assert process.returncode == 0, printed + errors
    actual: Json = json.loads(printed)
    return actual


def test_doctor_tries_a_lake_there(s3: Objects) -> None:
    actual = capstan(s3.variables, "--lake", f"s3a://{BUCKET}/new/lake", "doctor", "--deep")
    assert actual["ok"]
    # Arrow leaves a mark of the folder when it deletes a file.
    assert set(s3.keys("new/lake")) <= {"new/lake/"}


def test_the_demo_runs_there(s3: Objects) -> None:
    actual = capstan(s3.variables, "--lake", f"s3a://{BUCKET}/demo", "demo")
    steps = actual["steps"]
    assert isinstance(steps, list)
    captured = next(step for step in steps if step["step"] == "capture")
    assert (captured["fed"], sum(captured["late"].values())) == (336_776, 25)
    assert [step["changed"] for step in steps] == [True, True, False, True, True, True]


def test_an_outage_of_a_minute_leaves_nothing_partial(
    s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    lake = Lake.at(f"s3a://{BUCKET}/minute")
    declared = tmp_path / "streams.yaml"
    declared.write_text(_SHOP.format(source=tmp_path / "source"))
    (tmp_path / "source").mkdir()
    lines = [json.dumps({"id": n, "at": f"2024-05-01T{n % 24:02}:00:00Z"}) for n in range(500)]
    (tmp_path / "source" / "1.json").write_text("\n".join(lines))
    with faulty_process(s3.endpoint) as proxy:
        variables = {
            **Objects(proxy.endpoint).variables,
            "CAPSTAN_LAKE": lake.root,
            "CAPSTAN_CONFIG": str(declared),
        }
        command = "replay", "shop", "--into", "copied"
        capstan(variables, "capture", "shop")
        capstan(variables, "close", "shop")
        proxy.counted()
        began, process, requests = time.monotonic(), started(variables, *command), 0
        # It makes more than 500 requests.
        while requests < 250:
            requests += proxy.counted().total()
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.1)
        proxy.fail_every(1, ["reset"])
        time.sleep(60)
        requested = proxy.counted()
        proxy.recover()
        printed, errors = process.communicate()
        # It has asked again, with pauses, and has waited or given up.
        assert 10 <= requested.total() < 500, requested
        assert process.returncode in (0, 5), errors
        if process.returncode:
            assert json.loads(printed)["error"] == "CAP-LAKE"
        for claim in claims.active(lake):
            capstan(variables, "unlock", claim.run)
        assert capstan(variables, *command)["published"]
    rows = lake_contents.rows(lake.table("copied"))
    assert len(rows) == len(set(rows)) == 500
