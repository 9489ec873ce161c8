"""Makes the files of this folder with the code of commit bdf686e, the last of the former layout.

PYTHONPATH=CHECKOUT_OF_BDF686E/lib:. python tests/formats/2/make.py
"""

from __future__ import annotations

import json
from pathlib import Path

from capstan.declare import load
from capstan.session import build_session
from capstan.testing.settings import LASTING, MASTER

from capstan.pipeline.registry import registered
from tests.support import kept_lake, lake_figures

here = Path(__file__).parent
session = build_session("capstan-kept-lake", master=MASTER, extra=LASTING)
for name, done in kept_lake.make():
    print(name, done["code"], flush=True)
kept_lake.pack(here / "lake.tar.xz")
figures = {"commands": dict(kept_lake.carry_on()), "tables": lake_figures.tables(kept_lake.ROOT)}
session.stop()
lake_figures.write_figures(here / "figures.json.gz", figures)
kept_lake.remove()
kept_lake.declare(3, here)
declared = load(here / "streams.yaml", lake=str(here))
(here / "streams.yaml").unlink()
stored = {
    "pipelines": {
        name: lake_figures.identity_of(registered.get(name)) for name in kept_lake.PIPELINES
    },
    "transforms": {name: found.code_hash for name, found in declared.transforms.items()},
}
(here / "pipelines.json").write_text(f"{json.dumps(stored, indent=1, sort_keys=True)}\n")
