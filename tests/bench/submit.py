"""Jobs submitted as the DAGs submit them, one after the other, and the cost of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from capstan.errors import SystemFailureError
from capstan.spark.setup.local_submit import pyspark_home
from capstan.spark.submit_options import submission
from tests.bench.cpu_clock import Cost

_ROOT = Path(__file__).parents[2]
_MASTER = "local[2]"

DECLARED = _ROOT / "dags" / "streams.yaml"
"""The project's declarations."""


def submitted(
    folder: Path, job: str, request: Mapping[str, object], streams: Path = DECLARED
) -> Cost:
    """Run a job on the lake of a folder; returns its cost, from start to end.

    CPU seconds are those of `spark-submit` and all its child processes.

    Args:
        folder: Working folder; its lake is in `lake`.
        job: The job, by the name of its file.
        request: Its request.
        streams: The declarations.

    Raises:
        SystemFailureError: `CAP-BENCH` if it does not succeed.
    """
    given = submission(_MASTER, short=True)
    conf = [part for key, value in given.conf.items() for part in ("--conf", f"{key}={value}")]
    program = [str(pyspark_home() / "bin" / "spark-submit"), "--master", _MASTER, *conf]
    program += ["--driver-memory", given.memory, str(_ROOT / "spark_apps" / f"{job}.py")]
    program += ["--request", json.dumps(request), "--lake", str(folder / "lake")]
    before, began = os.times(), time.monotonic()
    ended = subprocess.run(
        [*program, "--config", str(streams)],
        env={**os.environ, **given.environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        last = ended.stdout.strip().rpartition("\n")[2]
        message = f"the job {job} ended with {ended.returncode}: {last}"
        raise SystemFailureError(
            "CAP-BENCH", message, "give the same request to the job by hand, and see its log"
        )
    after = os.times()
    cpu = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    return Cost(jvm=cpu, wall=time.monotonic() - began)
