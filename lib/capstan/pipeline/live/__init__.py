"""Live rescales of a job in one process. Reference implementation, no product code path.

Several workers exchange records by key, take snapshots, and rescale while records move.
Conformance tests compare it with Malstrom. An import contract keeps the product from using it.
"""

from __future__ import annotations

from capstan.pipeline.live.cluster import Cluster
from capstan.pipeline.live.coordinator import Coordinator, Operation, Running
from capstan.pipeline.live.distributor import Distributor
from capstan.pipeline.live.job import Apply, Exchange, Job, Keyed
from capstan.pipeline.live.routing import Phase, Router
from capstan.pipeline.live.wire import (
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
