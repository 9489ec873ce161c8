"""Layout of recordings in Kafka topics, by section 18 of `docs/protocol.md`: names and header."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from capstan.core.protocol import Release
from capstan.core.times import TimeType
from capstan.errors import CheckFailedError, InvalidRequestError

FORMATS = {1: Release.V031, 2: Release.V032}
"""The versions of the layout: how messages state their times."""

_URL = re.compile(r"kafka://([A-Za-z0-9.\-]+:\d{1,5}(?:,[A-Za-z0-9.\-]+:\d{1,5})*)/([^/]*)")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one stream."""

    servers: str  # `HOST:PORT` of the brokers, separated by commas
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Topics:
        """The topics at `kafka://HOST:PORT/PREFIX`."""
        match = _URL.fullmatch(url)
        if match is None or not _PREFIX.fullmatch(match[2]):
            raise InvalidRequestError(
                "CAP-TOPIC",
                f"not a URL of topics: {url[:120]!r}",
                "write kafka://HOST:PORT/PREFIX; a prefix has letters, digits, dots, dashes and "
                "underscores",
            )
        return cls(match[1], match[2])

    @staticmethod
    def is_url(place: str) -> bool:
        """Whether a place is the URL of topics, valid or not."""
        return place.startswith("kafka:")

    @property
    def url(self) -> str:
        """The topics as a URL."""
        return f"kafka://{self.servers}/{self.prefix}"

    @property
    def pattern(self) -> str:
        """Regular expression for the topics of all workers."""
        return re.escape(self.prefix) + r"-\d+"

    def topic(self, worker: int) -> str:
        """The topic of a worker."""
        return f"{self.prefix}-{worker}"


@dataclass(frozen=True, slots=True)
class TopicHeader:
    """Header of a stream's topics. They hold the recording of one tape, never two."""

    stream: str
    tape: str
    commit: int  # everything up to it was written
    time_type: TimeType
    columns: str  # payload columns, a Spark schema in JSON
    workers: Mapping[int, str]
    release: Release = Release.V031  # Whether events have a time each, or a stamp.

    @property
    def version(self) -> int:
        """The version of the layout."""
        return next(number for number, release in FORMATS.items() if release is self.release)

    def to_text(self) -> str:
        """The header as stored in the topic."""
        return json.dumps(
            {
                "format": self.version,
                "stream": self.stream,
                "tape": self.tape,
                "commit": self.commit,
                "time": self.time_type.to_json(),
                "columns": json.loads(self.columns),
                "workers": {str(worker): label for worker, label in self.workers.items()},
            },
            sort_keys=True,
        )

    @classmethod
    def from_text(cls, text: str, topic: str) -> TopicHeader:
        """The header written by `to_text`."""
        try:
            fields = json.loads(text)
            version = fields["format"]
            if version not in FORMATS:
                raise InvalidRequestError(
                    "CAP-TOPIC",
                    f"topic {topic} is in format {version}, this version reads formats 1 to "
                    f"{max(FORMATS)}",
                    "use the Capstan version that wrote it, or a newer one",
                )
            time_type, release = TimeType.from_json(fields["time"]), FORMATS[version]
            if release is Release.V031 and time_type.order.lexicographic:
                raise ValueError(text)
            return cls(
                str(fields["stream"]),
                str(fields["tape"]),
                int(fields["commit"]),
                time_type,
                json.dumps(fields["columns"]),
                {int(worker): str(label) for worker, label in fields["workers"].items()},
                release,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequestError(
                "CAP-TOPIC",
                f"topic {topic} has no header of a recording: {text[:80]!r}",
                "name the prefix that `capstan export` wrote to",
            ) from error


def newest_header(texts: list[str], topic: str) -> TopicHeader:
    """The newest header of a topic, with the workers of all its headers."""
    headers = [TopicHeader.from_text(text, topic) for text in texts]
    if not headers:
        raise InvalidRequestError(
            "CAP-TOPIC",
            f"topic {topic} does not exist or is empty",
            "name the prefix that `capstan export` wrote to",
        )
    if len({(header.tape, header.release) for header in headers}) > 1:
        raise mixed_recordings(topic)
    headers.sort(key=lambda header: header.commit)
    # Workers may be written one by one, and each header names only those written with it.
    workers = {worker: label for header in headers for worker, label in header.workers.items()}
    return replace(headers[-1], workers=dict(sorted(workers.items())))


@dataclass(frozen=True, slots=True)
class TopicTransfer:
    """Result of an export to topics, or of an import from them."""

    stream: str
    url: str
    cut: int  # exported commit, or the tape's newest commit after an import
    workers: int
    events: int
    records: int
    release: Release
    unchanged: bool | None = None  # an import found nothing new; None for an export

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        counts = {"workers": self.workers, "events": self.events, "records": self.records}
        unchanged = {} if self.unchanged is None else {"unchanged": self.unchanged}
        place = {"stream": self.stream, "cut": self.cut, "place": self.url}
        # The head of topics states it, so it is never assumed.
        timely = {"release": str(self.release), "assumed": False}
        return {**place, "timely": timely, **counts, **unchanged}


def mixed_recordings(topic: str) -> CheckFailedError:
    """The error for topics that hold two recordings."""
    return CheckFailedError(
        "CAP-TOPIC",
        f"topic {topic} holds messages of two recordings",
        "export each stream to separate topics; delete these, and export again",
        topic=topic,
    )
