"""Senders of recordings to a listener."""

from __future__ import annotations

import socket
import threading
from typing import Any

from pyspark.sql import SparkSession

from capstan.interop.transfer.listen import ListenRequest, ListenResult, listen
from capstan.interop.transfer.recording_format import Form
from capstan.storage.lake import Lake
from capstan.telemetry import instrumentation


def heard(
    spark: SparkSession,
    lake: Lake,
    name: str,
    form: Form,
    sent: dict[int, bytes],
    die_at: str = "",
    idle: float | None = None,
    every: int = 60,
) -> ListenResult:
    """What a listener finds when each worker gets the bytes of a sender."""

    def told(point: str, facts: dict[str, Any]) -> None:
        if point == "listen.ready":
            for worker, data in sent.items():
                arguments = (facts["ports"][worker], data)
                threading.Thread(target=send, args=arguments, daemon=True).start()
        if point == die_at:
            raise InterruptedError(point)

    def send(port: int, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), 60) as sender:
            sender.sendall(data)

    with instrumentation.subscribe(told):
        return listen(spark, lake, ListenRequest(name, len(sent), form, 0, every=every, idle=idle))
