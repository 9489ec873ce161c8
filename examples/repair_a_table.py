"""Repair a table: replay three days by a corrected transform, look at the change, take it back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import capstan

DECLARED = """
streams:
  orders:
    source:
      format: json
      path: "{here}/orders"
      schema: "id BIGINT, city STRING, amount INT, ordered_at TIMESTAMP"
    workers: {by: column, column: city}
    time: {domain: event, column: ordered_at, every: 1 day}

transforms:
  revenue:
    sql: |
      SELECT date_trunc('DAY', _time.event) AS day, sum(amount) AS amount
      FROM records GROUP BY date_trunc('DAY', _time.event)
    time: day
    grain: 1 day
"""


def main(folder: Path) -> None:
    """Run the example in a new folder."""
    config = folder / "streams.yaml"
    _write_orders(folder / "orders")
    config.write_text(DECLARED, encoding="utf-8")

    with capstan.Context(folder / "lake", config=config) as context:
        context.capture("orders")
        context.verify("orders").raise_for_violations()
        first = context.replay("orders", into="revenue", transform="revenue")
        print("published:", first.to_arrow().sort_by("day")["amount"].to_pylist())

        # The transform was wrong: amounts are in cents.
        config.write_text(DECLARED.replace("sum(amount)", "sum(amount) div 100"), encoding="utf-8")
        plan = context.plan(
            "orders", into="revenue", transform="revenue", since="2026-01-02", until="2026-01-05",
            compare=True,
        )  # fmt: skip
        assert plan.comparison is not None
        print("would change:", plan.comparison.changed, "rows")

        repaired = context.replay(plan)
        context.audit(repaired.name).raise_for_differences()
        print("repaired:", repaired.to_arrow().sort_by("day")["amount"].to_pylist())

        context.rollback(repaired.name)
        rows = context.table("revenue").orderBy("day").collect()
        print("rolled back:", [row.amount for row in rows])


def _write_orders(folder: Path) -> None:
    folder.mkdir(parents=True)
    orders = [
        {"id": n, "city": ("oslo", "bergen")[n % 2], "amount": 100 * n}
        | {"ordered_at": f"2026-01-{1 + n // 4:02}T{n % 4:02}:00:00Z"}
        for n in range(24)
    ]
    (folder / "0.json").write_text("\n".join(map(json.dumps, orders)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
