"""Recordings in Kafka's topics: their names, and what stands at their head.

A stream has a topic per worker, `PREFIX-<worker>`, and one, `PREFIX`, that says what they hold.
A topic may give a message twice, and messages of several partitions in any order. So each has a
number: `seq` of its event, and of a record also `pos`, which rises within the event. What is there
twice counts once; what is not there leaves a gap in the numbers, or an event without all of the
records that it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from capstan.core.times import TimeType
from capstan.errors import CheckFailedError, InvalidRequestError

FORMAT = 1
"""The version of what topics hold."""

_PLACE = re.compile(r"kafka://([A-Za-z0-9.\-]+:\d{1,5}(?:,[A-Za-z0-9.\-]+:\d{1,5})*)/([^/]*)")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one stream.

    Attributes:
        servers: `HOST:PORT` of brokers, by commas.
        prefix: How the names of its topics begin.
    """

    servers: str
    prefix: str

    @classmethod
    def at(cls, place: str) -> Topics:
        """The topics at `kafka://HOST:PORT/PREFIX`.

        Raises:
            InvalidRequestError: `CAP-TOPIC`, it is written in another way.
        """
        found = _PLACE.fullmatch(place)
        if found is None or not _PREFIX.fullmatch(found[2]):
            raise InvalidRequestError(
                "CAP-TOPIC",
                f"not a place of topics: {place[:120]!r}",
                "write kafka://HOST:PORT/PREFIX; a prefix has letters, digits, dots, dashes and "
                "underscores",
            )
        return cls(found[1], found[2])

    @staticmethod
    def named(place: str) -> bool:
        """Whether a place is meant to be one of topics."""
        return place.startswith("kafka:")

    @property
    def place(self) -> str:
        """The topics as they are written."""
        return f"kafka://{self.servers}/{self.prefix}"

    @property
    def pattern(self) -> str:
        """The regular expression of the topics of all workers."""
        return re.escape(self.prefix) + r"-\d+"

    def of(self, worker: int) -> str:
        """The topic of a worker."""
        return f"{self.prefix}-{worker}"


@dataclass(frozen=True, slots=True)
class Head:
    """What the topics of a stream hold.

    Attributes:
        stream: The stream that they were written from.
        tape: The identity of its tape: topics hold one recording, never two.
        commit: The commit up to which all was written.
        time_type: Its times.
        columns: Its own columns, as Spark writes a schema down in JSON.
        workers: Labels by worker, of those that were written.
    """

    stream: str
    tape: str
    commit: int
    time_type: TimeType
    columns: str
    workers: Mapping[int, str]

    def to_text(self) -> str:
        """The head as it stands in the topic."""
        return json.dumps(
            {
                "format": FORMAT,
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
    def from_text(cls, text: str, topic: str) -> Head:
        """The head that `to_text` wrote.

        Raises:
            InvalidRequestError: `CAP-TOPIC`, the message is no head, or one of a newer format.
        """
        try:
            found = json.loads(text)
            version = found["format"]
            if version != FORMAT:
                raise InvalidRequestError(
                    "CAP-TOPIC",
                    f"topic {topic} is in format {version}, this reads {FORMAT}",
                    "use the Capstan that wrote it, or a newer one",
                )
            return cls(
                str(found["stream"]),
                str(found["tape"]),
                int(found["commit"]),
                TimeType.from_json(found["time"]),
                json.dumps(found["columns"]),
                {int(worker): str(label) for worker, label in found["workers"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequestError(
                "CAP-TOPIC",
                f"topic {topic} does not say what is recorded: {text[:80]!r}",
                "name the prefix that `capstan export` was given",
            ) from error


def newest_head(texts: list[str], topic: str) -> Head:
    """What a topic says at last, with the workers of all it ever said; of one recording it must be.

    Raises:
        InvalidRequestError: `CAP-TOPIC`, it says nothing.
        CheckFailedError: `CAP-TOPIC`, it is of two recordings.
    """
    heads = [Head.from_text(text, topic) for text in texts]
    if not heads:
        raise InvalidRequestError(
            "CAP-TOPIC",
            f"there is no topic {topic}, or nothing in it",
            "name the prefix that `capstan export` was given",
        )
    if len({head.tape for head in heads}) > 1:
        raise mixed(topic)
    heads.sort(key=lambda head: head.commit)
    # Workers may be written one by one, and each head names only those that were written with it.
    workers = {worker: label for head in heads for worker, label in head.workers.items()}
    return replace(heads[-1], workers=dict(sorted(workers.items())))


def mixed(topic: str) -> CheckFailedError:
    """The error for topics that two recordings were written to."""
    return CheckFailedError(
        "CAP-TOPIC",
        f"topic {topic} holds messages of two recordings",
        "export each stream to topics of its own; delete these, and export again",
        topic=topic,
    )
