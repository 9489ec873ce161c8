"""Makes the files of this folder with the code of commit 39c5aa1, whose import paths it has.

PYTHONPATH=CHECKOUT_OF_39C5AA1/lib:. python tests/formats/3/make.py

If `tests` no longer runs with that code, take `tests` of the commit that brought this file.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from capstan.instrumentation import subscribe

from capstan.core.config import load_config
from capstan.pipeline.registry import registered
from capstan.spark.session import build_session
from tests.support import kept_lake, kept_lake_3, lake_figures
from tests.support.small_spark import LASTING, MASTER

HERE = Path(__file__).parent
# A session changes `PYTHONPATH`.
ENVIRONMENT = dict(os.environ)


def write_identities() -> None:
    """Write hashes and state signatures of pipelines, and hashes of transforms."""
    with tempfile.TemporaryDirectory() as name:
        kept_lake_3.declare("first", Path(name))
        declared = load_config(Path(name, "streams.yaml"), lake=name)
    importlib.import_module("tests.support.kept_pipelines")
    stored = {
        "pipelines": {
            name: lake_figures.identity_of(registered.get(name)) for name in kept_lake_3.PIPELINES
        },
        # That of `shop.py` imports from former paths.
        "transforms": {"by_customer": declared.transforms["by_customer"].code_hash},
    }
    path = HERE / "pipelines.json"
    path.write_text(f"{json.dumps(stored, indent=1, sort_keys=True)}\n")


def write_lake() -> None:
    """Make the lake, pack it, continue it, and write the figures."""
    session = build_session("capstan-kept-lake", master=MASTER, extra=LASTING)
    for name, done in kept_lake_3.make():
        print(name, done["code"], flush=True)
    for point, command in kept_lake_3.KILLED.values():
        # In a process of its own, which ends there.
        subprocess.run([sys.executable, __file__, point, command], env=ENVIRONMENT, check=True)
    kept_lake.pack(HERE / "lake.tar.xz")
    # Later tests continue what was packed.
    kept_lake.unpack(HERE / "lake.tar.xz")
    commands = dict(kept_lake_3.carry_on())
    session.stop()
    figures = {"commands": commands, "tables": lake_figures.tables(kept_lake.ROOT)}
    lake_figures.write_figures(HERE / "figures.json.gz", figures)
    kept_lake.remove()


def killed_at(point: str, command: str) -> None:
    """Run a command, and end this process at a named point of it."""
    build_session("capstan-kept-lake", master=MASTER, extra=LASTING)
    with subscribe(lambda reached, _: os._exit(0) if reached == point else None):
        sys.exit(f"{command} was not killed: {kept_lake.run(command)}")


if len(sys.argv) > 1:
    killed_at(*sys.argv[1:])
else:
    write_identities()
    with Path(f"{kept_lake.ROOT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_lake()
