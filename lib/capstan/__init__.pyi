from capstan.api.attach import capture_into as capture_into
from capstan.api.context import Context as Context
from capstan.api.listing import Listing as Listing
from capstan.api.replay_options import ReplayOptions as ReplayOptions
from capstan.backfill.planner import BackfillRequest as BackfillRequest
from capstan.backfill.run import BackfillResult as BackfillResult
from capstan.backfill.survey import Survey as Survey
from capstan.capture.query.attached_query import CaptureInto as CaptureInto
from capstan.capture.run import CaptureResult as CaptureResult
from capstan.core.config import ProjectConfig as ProjectConfig
from capstan.errors import CapstanError as CapstanError
from capstan.errors import CheckFailedError as CheckFailedError
from capstan.errors import FencedError as FencedError
from capstan.errors import IncompleteError as IncompleteError
from capstan.errors import InvalidRequestError as InvalidRequestError
from capstan.errors import RangeLockedError as RangeLockedError
from capstan.errors import SystemFailureError as SystemFailureError
from capstan.maintenance.run import MaintenanceResult as MaintenanceResult
from capstan.replay.execution.approval import Decision as Decision
from capstan.replay.planning.request import Request as ReplayRequest
from capstan.replay.preview import Preview as Preview
from capstan.replay.result import ReplayResult as ReplayResult
from capstan.replay.standalone_audit import AuditReport as AuditReport
from capstan.replay.standalone_audit import TableAudit as TableAudit
from capstan.storage.lake import Lake as Lake
from capstan.verify import Verification as Verification

# Its own name differs, so that no alias exports it.
__all__ = ["ReplayRequest"]
__version__: str
