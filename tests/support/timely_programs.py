"""Programs of released timely, built by cargo: `live_timely/main.rs` under each release."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from capstan.core.protocol import Release

CARGO = shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
HAS_CARGO = Path(CARGO).exists()
_HERE = Path(__file__).parent
_BUILT = _HERE.parent.parent / ".cache" / "live-timely"
_MANIFEST = """\
[package]
name = "live"
version = "0.1.0"
edition = "2021"

[features]
stamps = []

[dependencies]
timely = "={release}.0"
"""
PATIENCE = 600.0
TYPES = {"grid": "Product<u64,u64>", "pairs": "(u64,u64)", "line": "u64"}
"""The types of times by the kind that the program takes."""


def program(release: Release) -> str:
    """The path of the program under a release; cargo fetches what it needs."""
    folder = _BUILT / release
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "Cargo.toml").write_text(_MANIFEST.format(release=release))
    shutil.copy(_HERE / "live_timely" / "main.rs", folder / "src" / "main.rs")
    features = ["--features", "stamps"] if release is Release.V032 else []
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "target")}
    command = [CARGO, "build", "--quiet", *features]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=PATIENCE)
    return str(folder / "target" / "debug" / "live")


@dataclass(slots=True)
class Shown:
    """What a program printed."""

    records: Counter[tuple[str, int]] = field(default_factory=Counter)  # by stamp, as JSON
    frontiers: dict[int, list[list[object]]] = field(default_factory=dict)  # by worker, in order


def start(release: Release, *arguments: object) -> subprocess.Popen[str]:
    """The program at work."""
    command = [program(release), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def shown(process: subprocess.Popen[str], *, succeeds: bool = True) -> Shown:
    """What a program prints until it ends."""
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert not succeeds or process.returncode == 0, errors[-2000:]
    found = Shown()
    for line in map(json.loads, output.splitlines()):
        if "record" in line:
            found.records[json.dumps(line["stamp"], separators=(",", ":")), line["record"]] += 1
        else:
            found.frontiers.setdefault(line["worker"], []).append(line["frontier"])
    return found
