"""The files of a new project."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from capstan.cli.app import main
from capstan.cli.scaffold import DAYS, SHOPS, FileStatus, sample_files, write_project
from capstan.core.config import load_config
from capstan.errors import InvalidRequestError


def statuses(folder: Path, **options: Path) -> dict[str, FileStatus]:
    return {file.path.name: file.status for file in write_project(folder, **options)}


def test_a_new_project_is_written_whole_and_loads(tmp_path: Path) -> None:
    assert set(statuses(tmp_path).values()) == {FileStatus.CREATED}
    declared = load_config(tmp_path / "dags" / "streams.yaml", lake="/lake")
    source = Path(declared.stream("orders").source.path or "")
    assert len(list(source.glob("*.json"))) == DAYS + 1
    assert declared.registry.get("revenue_by_day").grain is not None


def test_again_changes_nothing_and_keeps_edits(tmp_path: Path) -> None:
    write_project(tmp_path)
    edited = tmp_path / "dags" / "streams.yaml"
    edited.write_text("streams: {}\n", encoding="utf-8")
    (tmp_path / "dags" / "capstan_pipelines.py").unlink()
    again = statuses(tmp_path)
    assert edited.read_text(encoding="utf-8") == "streams: {}\n"
    assert again.pop("streams.yaml") is FileStatus.KEPT
    assert again.pop("capstan_pipelines.py") is FileStatus.CREATED
    assert set(again.values()) == {FileStatus.UNCHANGED}


def test_a_dag_folder_takes_the_place_of_dags(tmp_path: Path) -> None:
    dags = tmp_path / "airflow" / "dags"
    write_project(tmp_path / "project", airflow=dags)
    assert not (tmp_path / "project" / "dags").exists()
    declared = load_config(dags / "streams.yaml", lake="/lake")
    assert Path(declared.stream("orders").source.path or "").is_dir()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="CAP-INIT"):
        write_project(tmp_path / "file")


def test_the_command_lists_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "init", str(tmp_path)]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {file["status"] for file in files} == {"created"}
    assert all(Path(file["path"]).is_file() for file in files)


def test_the_sample_is_a_week_of_every_shop() -> None:
    orders = [json.loads(line) for _, text in sample_files() for line in text.splitlines()]
    assert [order["id"] for order in orders] == list(range(1, len(orders) + 1))
    placed = {(order["shop"], datetime.fromisoformat(order["placed_at"])) for order in orders}
    assert len(placed) == len(orders)
    days = {(shop, at.date()) for shop, at in placed}
    assert len(days) == (DAYS + 1) * len(SHOPS)
