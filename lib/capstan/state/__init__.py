"""Keyed state: kept by key, taken in snapshots, dealt to more or fewer workers. No Spark."""

from __future__ import annotations

from capstan.state.aggregating import KeyedAggregate
from capstan.state.checkpoints import Checkpoints, Rescaled, rescaled, restore_all
from capstan.state.codec import PLAIN, Codec, Encoded, PlainCodec, codecs, register_codec
from capstan.state.epochs import (
    EpochGenerator,
    EpochRule,
    assign_timestamps,
    limit_out_of_orderness,
    monotonic,
)
from capstan.state.hashing import key_hash, key_hashes
from capstan.state.inputs import AlignedInput
from capstan.state.keyed import KeyedOperator, StateStore
from capstan.state.keys import KeyedSnapshot, OperatorStates, Proof, prove
from capstan.state.logic import Expiring, SomeLogic, StatefulLogic, stateful_map, ttl_map
from capstan.state.logic import Output as LogicOutput
from capstan.state.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Data,
    Epoch,
    Interrogate,
    Message,
    Reply,
    Rescale,
    SuspendMarker,
)
from capstan.state.outputs import Output, Partitioner, by_key, round_robin, to_all
from capstan.state.per_record import KeyedLogic
from capstan.state.placement import HashPlacement, Modulo, Placement, Rendezvous
from capstan.state.snapshots import MemorySnapshots, SnapshotStore

__all__ = [
    "PLAIN",
    "AbsBarrier",
    "Acquire",
    "AlignedInput",
    "Checkpoints",
    "Codec",
    "Collect",
    "Data",
    "Encoded",
    "Epoch",
    "EpochGenerator",
    "EpochRule",
    "Expiring",
    "HashPlacement",
    "Interrogate",
    "KeyedAggregate",
    "KeyedLogic",
    "KeyedOperator",
    "KeyedSnapshot",
    "LogicOutput",
    "MemorySnapshots",
    "Message",
    "Modulo",
    "OperatorStates",
    "Output",
    "Partitioner",
    "Placement",
    "PlainCodec",
    "Proof",
    "Rendezvous",
    "Reply",
    "Rescale",
    "Rescaled",
    "SnapshotStore",
    "SomeLogic",
    "StateStore",
    "StatefulLogic",
    "SuspendMarker",
    "assign_timestamps",
    "by_key",
    "codecs",
    "key_hash",
    "key_hashes",
    "limit_out_of_orderness",
    "monotonic",
    "prove",
    "register_codec",
    "rescaled",
    "restore_all",
    "round_robin",
    "stateful_map",
    "to_all",
    "ttl_map",
]
