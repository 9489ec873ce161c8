"""Damaged tables: each verb works, or says what is wrong, and what to do."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import capstan
from capstan.errors import CapstanError
from tests.support.sample_streams import lay, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """
streams:
  little:
    source: {format: parquet, path: "{here}/source"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour}
replays:
  daily:
    stream: little
    target: days
    schedule: "@daily"
    since: 2024-05-01
    until: 2024-05-03
"""
Verb = Callable[[capstan.Context, str], object]
VERBS: dict[str, Verb] = {
    "streams": lambda ctx, _: ctx.streams().to_json(),
    "runs": lambda ctx, _: ctx.runs().to_json(),
    "verify": lambda ctx, _: ctx.verify("little"),
    "verify deep": lambda ctx, _: ctx.verify("little", deep=True),
    "plan": lambda ctx, _: ctx.plan("little", into="copy", partial=True),
    "compare": lambda ctx, _: ctx.plan("little", into="copy", compare=True, partial=True),
    "table": lambda ctx, _: ctx.table("copy"),
    "audit": lambda ctx, run: ctx.audit(run),
    "audit table": lambda ctx, _: ctx.audit_table("little", table="copy"),
    "gaps": lambda ctx, _: ctx.gaps("daily").to_json(),
    "capture": lambda ctx, _: ctx.capture("little"),
    "replay": lambda ctx, _: ctx.replay("little", into="copy", partial=True),
    "append": lambda ctx, _: ctx.replay("little", into="copy", mode="append", since="2024-05-02T00",
                                        until="2024-05-02T03"),
    "replay elsewhere": lambda ctx, _: ctx.replay("little", into="other", partial=True),
    "backfill": lambda ctx, _: ctx.backfill("daily"),
    "rollback": lambda ctx, run: ctx.rollback(run),
    "publish": lambda ctx, run: ctx.publish(run),
    "maintain": lambda ctx, _: ctx.maintain("little"),
}  # fmt: skip


def files(table: Path) -> list[Path]:
    return sorted(table.rglob("*.parquet"))


def without_data(table: Path) -> None:
    for file in files(table):
        file.unlink()


def with_rubbish_for_data(table: Path) -> None:
    for file in files(table):
        file.write_bytes(b"no Parquet at all")
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def newest(table: Path) -> Path:
    return sorted((table / "_delta_log").glob("*.json"))[-1]


def with_rubbish_for_a_commit(table: Path) -> None:
    commit = newest(table)
    commit.write_text("{no JSON")
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)


def with_an_empty_commit(table: Path) -> None:
    number = int(newest(table).stem) + 1
    (table / "_delta_log" / f"{number:020}.json").write_text("")


def without_a_commit(table: Path) -> None:
    sorted((table / "_delta_log").glob("*.json"))[0].unlink()


def of_a_newer_format(table: Path) -> None:
    number = int(newest(table).stem) + 1
    action = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    (table / "_delta_log" / f"{number:020}.json").write_text(json.dumps(action))


def gone(table: Path) -> None:
    shutil.rmtree(table)


def a_file(table: Path) -> None:
    shutil.rmtree(table)
    table.write_text("no table")


DAMAGES = {
    each.__name__: each
    for each in (without_data, with_rubbish_for_data, with_rubbish_for_a_commit,
                 with_an_empty_commit, without_a_commit, of_a_newer_format, gone, a_file)
}  # fmt: skip
OFTEN = {
    (table, damage)
    for table in ("streams/little/records", "tables/copy")
    for damage in ("without_data", "with_rubbish_for_a_commit")
}
"""The cases of `make test-all`; the others are nightly."""
TABLES = ("streams/little/records", "streams/little/events", "streams/little/workers",
          "tables/copy", "ledger/runs")  # fmt: skip


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A lake with a tape and a table, and the run that has published it."""
    folder = tmp_path_factory.mktemp("whole")
    lay(folder / "source", "0", rows(range(120)))
    (folder / "streams.yaml").write_text(CONFIG.replace("{here}", str(folder)), encoding="utf-8")
    ctx = capstan.Context(folder / "lake", config=folder / "streams.yaml", spark=spark)
    ctx.capture("little")
    run = ctx.replay("little", into="copy", partial=True)
    lay(folder / "source", "1", rows(range(120, 130)))
    return folder, run.name


def broken(whole: tuple[Path, str], spark: SparkSession, place: Path) -> capstan.Context:
    folder, _ = whole
    shutil.copytree(folder / "lake", place)
    return capstan.Context(place, config=folder / "streams.yaml", spark=spark)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("table", "damage"),
    [
        pytest.param(*case, marks=pytest.mark.rest if case in OFTEN else pytest.mark.nightly)
        for case in itertools.product(TABLES, DAMAGES)
    ],
)
def test_no_verb_ends_with_an_error_that_is_not_known(
    whole: tuple[Path, str], spark: SparkSession, tmp_path: Path, table: str, damage: str
) -> None:
    ctx = broken(whole, spark, tmp_path / "lake")
    assert (tmp_path / "lake" / table).is_dir()
    DAMAGES[damage](tmp_path / "lake" / table)
    wrong = {}
    for name, verb in VERBS.items():
        try:
            verb(ctx, whole[1])
        except CapstanError as error:
            if error.code == "CAP-BROKEN" or not error.hint:
                wrong[name] = repr(error)
        except BaseException as error:
            wrong[name] = repr(error)
    assert wrong == {}
