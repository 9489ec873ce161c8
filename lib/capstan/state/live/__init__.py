"""Several workers in one process: exchange, snapshots, and rescales while records move."""

from __future__ import annotations

from capstan.state.live.cluster import Cluster
from capstan.state.live.coordinator import Coordinator, Operation, Running
from capstan.state.live.distributor import Distributor
from capstan.state.live.job import Apply, Exchange, Job, Keyed
from capstan.state.live.routing import Phase, Router
from capstan.state.live.wire import (
    AckUpgrade,
    BarrierMarker,
    Bye,
    Done,
    Prepared,
    Sent,
    Upgrade,
    Wire,
)

__all__ = [
    "AckUpgrade",
    "Apply",
    "BarrierMarker",
    "Bye",
    "Cluster",
    "Coordinator",
    "Distributor",
    "Done",
    "Exchange",
    "Job",
    "Keyed",
    "Operation",
    "Phase",
    "Prepared",
    "Router",
    "Running",
    "Sent",
    "Upgrade",
    "Wire",
]
