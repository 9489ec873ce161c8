"""Checkpoint of an executor, as a value and as bytes.

Format: 4 bytes `CDG2`, a BLAKE2b hash of the rest in 32 bytes, the length of a JSON header in
8 bytes (little-endian), the header, and the parts that it refers to, one after another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from capstan.core.json_object import Json
from capstan.pipeline.graph.arrow_ipc import batches_from_bytes, batches_to_bytes
from capstan.pipeline.graph.errors import CheckpointCorrupt
from capstan.pipeline.graph.events import Event, OutputKey, OutputKind, Timer
from capstan.pipeline.graph.operator import OperatorState
from capstan.pipeline.graph.signature import Signatures

_MAGIC: Final = b"CDG2"
_DIGEST: Final = 32


@dataclass(frozen=True, slots=True)
class NodeCheckpoint:
    """The checkpoint of one node: state, watermark, timers that have not fired, queued events."""

    state: OperatorState | None = None
    watermark: int | None = None
    timers: tuple[Timer, ...] = ()
    queue: tuple[tuple[int, Event], ...] = ()


@dataclass(frozen=True, slots=True)
class DagCheckpoint:
    """The checkpoint of an executor, with outputs that were collected and not taken yet."""

    nodes: Mapping[str, NodeCheckpoint]
    outputs: Mapping[OutputKey, tuple[Event, ...]] = field(default_factory=dict)
    checkpoint_id: int | None = None

    @property
    def operators(self) -> Mapping[str, OperatorState]:
        """States of the nodes that have an operator, by name."""
        return {name: node.state for name, node in self.nodes.items() if node.state is not None}

    @property
    def signatures(self) -> Signatures:
        """Known signatures of the operators with state, by name."""
        return signatures_of(self.nodes)

    def to_bytes(self) -> bytes:
        """Serialize the checkpoint; `from_bytes` reads it."""
        parts = _Parts()
        header = {
            "checkpoint_id": self.checkpoint_id,
            "nodes": {name: _node_json(node, parts) for name, node in self.nodes.items()},
            "outputs": [
                [key.node, key.kind.value, key.name, parts.add_events(events)]
                for key, events in self.outputs.items()
            ],
        }
        text = json.dumps(header).encode()
        body = len(text).to_bytes(8, "little") + text + b"".join(parts.parts)
        return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> DagCheckpoint:
        """Read exactly one checkpoint that `to_bytes` wrote."""
        start = len(_MAGIC) + _DIGEST
        magic, digest, body = data[: len(_MAGIC)], data[len(_MAGIC) : start], data[start:]
        if magic != _MAGIC or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
            reason = "unknown format" if magic != _MAGIC else "the digest differs"
            raise CheckpointCorrupt.create(f"not a complete checkpoint: {reason}", reason=reason)
        size = int.from_bytes(body[:8], "little")
        header, parts = json.loads(body[8 : 8 + size]), body[8 + size :]
        return cls(
            {name: _node_of(node, parts) for name, node in header["nodes"].items()},
            {
                OutputKey(node, OutputKind(kind), name): tuple(_events_of(events, parts))
                for node, kind, name, events in header["outputs"]
            },
            header["checkpoint_id"],
        )


def signatures_of(nodes: Mapping[str, NodeCheckpoint]) -> Signatures:
    """Return the known signatures of nodes with state, by name."""
    states = {name: node.state for name, node in nodes.items() if node.state is not None}
    return {name: state.signature for name, state in states.items() if state.signature is not None}


class _Parts:
    """Byte strings one after another, each addressed by its offset and length."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> list[int]:
        span = [self._size, len(data)]
        self.parts.append(data)
        self._size += len(data)
        return span

    def add_events(self, events: Iterable[Event]) -> list[list[object]]:
        return [
            [event.time, self.add(batches_to_bytes(event.batch.schema, [event.batch]))]
            for event in events
        ]


def _part(span: Sequence[int], parts: bytes) -> bytes:
    return parts[span[0] : span[0] + span[1]]


def _events_of(spans: Sequence[tuple[int, Sequence[int]]], parts: bytes) -> list[Event]:
    return [Event(time, batches_from_bytes(_part(span, parts))[0]) for time, span in spans]


def _node_json(node: NodeCheckpoint, parts: _Parts) -> dict[str, object]:
    state = node.state
    return {
        "state": state
        and [state.operator_id, state.version, parts.add(state.data), state.signature],
        "watermark": node.watermark,
        "timers": [[timer.time, timer.tag] for timer in node.timers],
        "ports": [port for port, _ in node.queue],
        "queue": parts.add_events(event for _, event in node.queue),
    }


def _node_of(node: Json, parts: bytes) -> NodeCheckpoint:
    state = None
    if node["state"] is not None:
        number, version, span, signature = node["state"]
        state = OperatorState(number, version, _part(span, parts), signature)
    return NodeCheckpoint(
        state,
        node["watermark"],
        tuple(Timer(time, tag) for time, tag in node["timers"]),
        tuple(zip(node["ports"], _events_of(node["queue"], parts), strict=True)),
    )
