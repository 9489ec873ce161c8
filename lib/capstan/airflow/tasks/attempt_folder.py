"""Folders of task tries: the request of the Spark app, and its result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from airflow.sdk import Context


@dataclass(frozen=True, slots=True)
class TryFolder:
    """The folder of one try of a task, on the machine that runs it."""

    path: Path

    @property
    def request(self) -> Path:
        """The request, as JSON."""
        return self.path / "request.json"

    @property
    def result(self) -> Path:
        """The job's result, as JSON, written atomically."""
        return self.path / "result.json"

    def prepare(self, request: Mapping[str, object]) -> None:
        """Create the folder anew, with the request in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        self.request.write_text(json.dumps(request), encoding="utf-8")

    def read_result(self) -> dict[str, object] | None:
        """The job's result; None if it left none."""
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def remove(self) -> None:
        """Delete the folder, and parent folders that are empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        for parent in list(self.path.parents)[:3]:
            try:
                parent.rmdir()
            except OSError:
                return


def try_folder(work: Path, context: Context) -> TryFolder:
    """The folder of the current try, by DAG, run, task and try number."""
    ti = context["ti"]
    mapped = ti.map_index is not None and ti.map_index >= 0
    task = f"{ti.task_id}.{ti.map_index}" if mapped else ti.task_id
    parts = (ti.dag_id, ti.run_id, task, str(ti.try_number))
    return TryFolder(work.joinpath("tries", *(quote(part, safe=" :+") for part in parts)))
