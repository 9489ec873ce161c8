"""Assets: streams, whose events carry frontiers, and tables, whose events carry certificates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

from capstan.core.config import ProjectConfig
from capstan.core.config.names import is_catalog_name, normalised
from capstan.core.json_object import Json
from capstan.storage.ledger.certificate import Certificate

REPLAYED = AssetAlias("capstan/replayed")
"""Alias for the table that `capstan_replay` changes, which is known at run time only."""

CAPTURED = AssetAlias("capstan/captured")
"""Alias for the stream that a task captures whose stream is templated."""

_CAPTURED = ("stream", "cut", "frontier", "batches", "fed", "records", "late")
_CERTIFIED = (
    "run", "stream", "cut", "workers", "since", "until", "records", "fingerprint", "frontier",
    "complete", "late", "transform", "pipeline", "mode", "target", "target_path",
    "target_version", "published", "approval",
)  # fmt: skip


def stream_asset(name: str) -> Asset:
    """The asset of a stream's tape: `capstan://streams/<name>`."""
    return Asset(name=f"capstan/streams/{name}", uri=f"capstan://streams/{name}", group="capstan")


def table_asset(target: str, config: ProjectConfig | None = None) -> Asset:
    """The asset of a target: its declared one, else one of a URI made from its name or path.

    The URI is `capstan://tables/<name>`, or `capstan://tables/path/<path or URI>`.
    """
    targets = config.targets if config is not None else {}
    table = normalised(target) if is_catalog_name(target) else None
    declared = targets.get(target) or next(
        (
            each
            for each in targets.values()
            if target == each.path or (table and each.table and normalised(each.table) == table)
        ),
        None,
    )
    if declared is not None and declared.asset is not None:
        # Named as Airflow names an asset of which a DAG gives the URI alone.
        return Asset(name=declared.asset, uri=declared.asset)
    name = table or target if "/" not in target else f"path/{target.strip('/').replace('://', '/')}"
    return Asset(name=f"capstan/tables/{name}", uri=f"capstan://tables/{name}", group="capstan")


def gone_asset(target: str) -> Asset:
    """The asset of the intervals that a target has lost since Airflow was told of them.

    It is named after the target, whatever asset is declared for that.
    """
    table = table_asset(target)
    return Asset(name=f"{table.name}/gone", uri=f"{table.uri}/gone", group="capstan")


def declared_tables(config: ProjectConfig) -> list[Asset]:
    """The assets of all declared targets, and of those of declared replays, once each."""
    targets = dict.fromkeys([*config.targets, *(r.target for r in config.replays.values())])
    assets = (table_asset(target, config) for target in targets)
    return list({asset.uri: asset for asset in assets}.values())


def tell_through_aliases(
    context: Context, outlets: Iterable[object], asset: Asset, extra: Json
) -> None:
    """Emit the event of an asset through the aliases in `outlets`."""
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(asset, extra=plain(extra))


def plain(value: Json) -> dict[str, Any]:
    """A copy in JSON's types, as events carry it; other values become text."""
    return dict(json.loads(json.dumps(dict(value), default=str)))


def captured(result: Json) -> dict[str, object]:
    """The `extra` of a stream asset's event, from a capture's result."""
    return {key: result.get(key) for key in _CAPTURED}


def certified(certificate: Certificate, *, unchanged: bool) -> dict[str, object]:
    """The `extra` of a table asset's event, from a certificate, without samples of rows.

    `ReplayResult.from_json` reads it.
    """
    audit = certificate.audit or {}
    return {
        **{key: getattr(certificate, key) for key in _CERTIFIED},
        "not_covered": asdict(certificate.not_covered),
        "unchanged": unchanged,
        **({"streams": certificate.streams} if certificate.streams else {}),
        "audit": {key: audit.get(key) for key in ("kind", "passed", "cells", "differing")},
    }
