"""Recordings in timely dataflow's formats, in pure Python: read, write, capture, replay them."""

from __future__ import annotations

from capstan.interop.timely.assumed_release import assumed_of_frames, assumed_of_lines
from capstan.interop.timely.capture import Capture, Captured, Output, capture_into
from capstan.interop.timely.encoding import Encoding, Frames, Lines
from capstan.interop.timely.event_link import EventLink, EventPusher, EventSource, source_of
from capstan.interop.timely.frames import FrameDecoder, encode_event
from capstan.interop.timely.reader import EventReader
from capstan.interop.timely.recording_files import (
    case_beside,
    open_recording,
    recordings_in,
    release_of,
    times_of,
    types_of,
    worker_of,
)
from capstan.interop.timely.replay import (
    Advanced,
    Consumer,
    Emitted,
    Replayed,
    Replayer,
    ReplayWorker,
    Step,
    extract,
    replay_into,
)
from capstan.interop.timely.sockets import Listener, SocketWriter, connect
from capstan.interop.timely.types.codec import (
    CoordinateCodec,
    MisfitError,
    ShortError,
    TypeCodec,
    TypeShape,
)
from capstan.interop.timely.types.decoder import MAX_FRAME, Damage, Torn
from capstan.interop.timely.types.event_types import EventTypes, TimeCodec
from capstan.interop.timely.types.type_names import codec_of, register_type
from capstan.interop.timely.writer import EventWriter

__all__ = [
    "MAX_FRAME",
    "Advanced",
    "Capture",
    "Captured",
    "Consumer",
    "CoordinateCodec",
    "Damage",
    "Emitted",
    "Encoding",
    "EventLink",
    "EventPusher",
    "EventReader",
    "EventSource",
    "EventTypes",
    "EventWriter",
    "FrameDecoder",
    "Frames",
    "Lines",
    "Listener",
    "MisfitError",
    "Output",
    "ReplayWorker",
    "Replayed",
    "Replayer",
    "ShortError",
    "SocketWriter",
    "Step",
    "TimeCodec",
    "Torn",
    "TypeCodec",
    "TypeShape",
    "assumed_of_frames",
    "assumed_of_lines",
    "capture_into",
    "case_beside",
    "codec_of",
    "connect",
    "encode_event",
    "extract",
    "open_recording",
    "recordings_in",
    "register_type",
    "release_of",
    "replay_into",
    "source_of",
    "times_of",
    "types_of",
    "worker_of",
]
