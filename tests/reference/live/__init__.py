"""Live rescales of a job in one process.

Several workers exchange records by key, take snapshots, and rescale while records move.
Conformance tests compare it with Malstrom.
"""

from __future__ import annotations

from tests.reference.live.cluster import Cluster
from tests.reference.live.coordinator import Coordinator, Operation, Running
from tests.reference.live.distributor import Distributor
from tests.reference.live.job import Apply, Exchange, Job, Keyed
from tests.reference.live.routing import Phase, Router
from tests.reference.live.wire import (
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
