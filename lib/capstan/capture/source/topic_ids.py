"""Topic id check: detects Kafka topics that were deleted and recreated between captures.

A recreated topic has the same name, but its offsets start again. If it is already longer than the
old one was, its first records would be mistaken for those on tape.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from capstan.capture.source.errors import broker_gone
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import command
from capstan.storage.lake import exists, read_text, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.config import Source, Stream

_CLIENT_PREFIX = "kafka."
"""The prefix of options for Kafka's own clients."""


def require_same_topics(spark: SparkSession, stream: Stream, checkpoint: str) -> None:
    """Check that no topic was recreated since the checkpoint, and store the present topic ids."""
    try:
        current = _ids(spark, stream.source)
    except Py4JJavaError as error:
        broker_error = broker_gone(stream.name, error)
        if broker_error is None:
            return  # The query will report the problem.
        raise broker_error from error
    path = f"{checkpoint}/topics"
    stored = json.loads(read_text(path)) if exists(path) else {}
    for topic, identity in current.items():
        if stored.get(topic, identity) != identity:
            raise InvalidRequestError(
                "CAP-SOURCE-OTHER",
                f"stream {stream.name}: topic {topic} was deleted and recreated since the last "
                "capture, so its offsets belong to other records",
                f"{command('capture', stream.name, '--reseat')} captures the new topic from its "
                "beginning; uncaptured records of the old one are on no tape",
                stream=stream.name,
                topic=topic,
            )
    if stored != {**stored, **current}:
        write_text(path, json.dumps({**stored, **current}, sort_keys=True))


def _ids(spark: SparkSession, source: Source) -> dict[str, str]:
    """The ids of the source's topics that exist."""
    jvm = spark._jvm
    assert jvm is not None
    properties = jvm.java.util.Properties()
    for name, value in source.options.items():
        if name.lower().startswith(_CLIENT_PREFIX):
            properties.put(name[len(_CLIENT_PREFIX) :], value)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        existing = set(admin.listTopics().names().get())
        names = jvm.java.util.ArrayList()
        for topic in sorted(_selected(source, existing)):
            names.add(topic)
        topics = admin.describeTopics(names).allTopicNames().get()
        return {topic: topics[topic].topicId().toString() for topic in topics}
    finally:
        admin.close()


def _selected(source: Source, existing: set[str]) -> set[str]:
    options = source.options_by_name
    if "subscribepattern" in options:
        return {topic for topic in existing if re.fullmatch(options["subscribepattern"], topic)}
    if "assign" in options:
        return existing.intersection(json.loads(options["assign"]))
    return existing.intersection(part.strip() for part in options.get("subscribe", "").split(","))
