"""Assets: a stream, whose events carry its frontier; a table, whose events carry certificates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

REPLAYED = AssetAlias("capstan/replayed")
"""What `capstan_replay` changes; which table that is, is known when it runs."""

_CAPTURED = ("stream", "cut", "frontier", "batches", "fed", "records", "late")
_CERTIFIED = (
    "run", "stream", "cut", "workers", "since", "until", "records", "fingerprint", "frontier",
    "complete", "late", "not_covered", "transform", "pipeline", "mode", "target", "target_path",
    "target_version", "published", "stood", "approval",
)  # fmt: skip


def stream_asset(name: str) -> Asset:
    """The asset of a stream's tape: `capstan://streams/<name>`."""
    return Asset(name=f"capstan/streams/{name}", uri=f"capstan://streams/{name}", group="capstan")


def table_asset(target: str) -> Asset:
    """The asset of a target: `capstan://tables/<name>`, `capstan://tables/path/<path or URI>`."""
    name = target if "/" not in target else f"path/{target.strip('/').replace('://', '/')}"
    return Asset(name=f"capstan/tables/{name}", uri=f"capstan://tables/{name}", group="capstan")


def tell_tables(
    context: Context, outlets: Iterable[object], target: object, extra: Mapping[str, object]
) -> Asset:
    """Tell the asset of a table that a task has changed, where it is one only by an alias."""
    asset = table_asset(str(target))
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(asset, extra=plain(extra))
    return asset


def plain(value: Mapping[str, object]) -> dict[str, Any]:
    """The same as an event can carry it: of what JSON has, text for all else."""
    return dict(json.loads(json.dumps(dict(value), default=str)))


def captured(result: Mapping[str, object]) -> dict[str, object]:
    """What the event of a stream's asset carries, of a capture's result."""
    return {key: result.get(key) for key in _CAPTURED}


def certified(result: Mapping[str, object]) -> dict[str, object]:
    """What the event of a table's asset carries, of a certificate: no samples of rows."""
    audit = result.get("audit")
    short = dict(audit) if isinstance(audit, Mapping) else {}
    kept = {key: short.get(key) for key in ("kind", "passed", "cells", "differing")}
    return {**{key: result.get(key) for key in _CERTIFIED}, "audit": kept}
