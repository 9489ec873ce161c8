"""Declarations of many streams."""

from __future__ import annotations


def many_streams(count: int) -> str:
    """A declaration file of streams `s0`, `s1`, ...: each scheduled, every tenth with a replay."""
    streams = (
        f"""
  s{number}:
    description: Stream number {number}
    source:
      format: parquet
      path: "{{lake}}/sources/s{number}"
      options: {{maxFilesPerTrigger: 1}}
      schema: "id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING"
    workers: {{by: column, column: place}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 2 hours}}
    schedule: "@hourly\""""
        for number in range(count)
    )
    replays = (
        f"""
  r{number}:
    stream: s{number}
    target: t{number}
    since: 2024-05-01
    schedule: "@daily\""""
        for number in range(0, count, 10)
    )
    return f"streams:{''.join(streams)}\nreplays:{''.join(replays)}\n"
