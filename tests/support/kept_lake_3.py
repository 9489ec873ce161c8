"""What a project of commit 39c5aa1 declares beyond the lake of format 2: see `tests/formats`."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support import kept_lake
from tests.support.kept_lake import ROOT

PIPELINES = ("paid", "paid_by_place", "large_orders", "settled", "placed", "per_shop")
"""The pipelines of `tests/support/kept_pipelines.py`."""

DECLARED = """
streams:
  payments:
    source: {format: parquet, path: ROOT/sources/payments, options: {maxFilesPerTrigger: 1}}
    workers: {by: key, columns: [id], count: 2}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
  changes:
    source:
      format: text
      path: ROOT/sources/changes
      schema: value STRING
      options: {maxFilesPerTrigger: 1}
      select:
        - "from_json(value, 'id BIGINT, at BIGINT, version BIGINT, op STRING, note STRING').*"
      where: op != 'test'
    workers: {by: key, columns: [id], count: 2}
    time: {domain: event, column: at, unit: s, every: 1 hour, lateness: 1 hour}
transforms:
  by_customer:
    sql: "SELECT id AS customer, version, op, upper(note) AS note FROM records"
pipelines: {}
targets:
  moved: {path: ROOT/moved/MOVED}
  clustered:
    create: {cluster_by: [place], properties: {delta.enableChangeDataFeed: "true"}}
replays:
  settled:
    streams: {orders: orders, payments: payments}
    pipeline: settled
    sink: joined
    target: settled
    follow: declared
  customers:
    stream: changes
    transform: by_customer
    target: customers
    mode: merge
    keys: [customer]
    sequence_by: [version]
    delete_when: op = 'd'
    history: true
    since: 2024-05-01
    until: 2024-05-02
  of_places:
    streams: {orders: orders, payments: payments}
    workers_of: {orders: [a, c]}
    pipeline: paid_by_place
    target: of_places
    since: 2024-05-01
    until: 2024-05-02
    schedule: "@hourly"
"""


def declare(moved: str, folder: Path = ROOT) -> None:
    """Write `streams.yaml` with these declarations and those of format 2.

    Args:
        moved: The folder in which the target `moved` is.
        folder: Where to write.
    """
    kept_lake.declare(3, folder)
    path = folder / "streams.yaml"
    declared = yaml.safe_load(path.read_text("utf-8"))
    more = yaml.safe_load(DECLARED.replace("ROOT", str(ROOT)).replace("MOVED", moved))
    for section, entries in more.items():
        declared[section].update(entries)
    declared["pipelines"].update(
        {name: f"tests.support.kept_pipelines:{name}" for name in PIPELINES}
    )
    path.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")
