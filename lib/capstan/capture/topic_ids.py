"""Whether the topics of a stream are those that were captured so far, by their ids.

A topic that was deleted and made again has the same name, and offsets that begin anew. Of one that
is longer by now than the old one was, the first records would be taken for those that are on tape.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from capstan.capture.source import broker_gone
from capstan.errors import InvalidRequestError
from capstan.storage.lake import exists, read_text, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.config import Source, Stream

_CLIENTS = "kafka."
"""What the options of Kafka's own clients begin with."""


def require_same_topics(spark: SparkSession, stream: Stream, checkpoint: str) -> None:
    """Check that no topic was made again since a checkpoint was, and note which there are.

    Args:
        spark: The session, with the classes of Kafka's clients.
        stream: A stream whose source is Kafka.
        checkpoint: The folder of its checkpoint.

    Raises:
        InvalidRequestError: `CAP-SOURCE-OTHER`, naming the topic.
        SystemFailureError: `CAP-BROKER` when the broker does not answer.
    """
    try:
        now = _ids(spark, stream.source)
    except Py4JJavaError as error:
        gone = broker_gone(stream.name, error)
        if gone is None:
            return  # What is wrong with it the query will say.
        raise gone from error
    path = f"{checkpoint}/topics"
    then = json.loads(read_text(path)) if exists(path) else {}
    for topic, identity in now.items():
        if then.get(topic, identity) != identity:
            raise InvalidRequestError(
                "CAP-SOURCE-OTHER",
                f"stream {stream.name}: topic {topic} was deleted and made again since the last "
                "capture: its offsets are those of other records",
                f"`capstan capture {stream.name} --reseat` captures what it has now, from its "
                "beginning; what the old one had besides is on no tape",
                stream=stream.name,
                topic=topic,
            )
    if then != {**then, **now}:
        write_text(path, json.dumps({**then, **now}, sort_keys=True))


def _ids(spark: SparkSession, source: Source) -> dict[str, str]:
    """The ids of the topics that a source names, as far as they are there."""
    jvm = spark._jvm
    assert jvm is not None
    properties = jvm.java.util.Properties()
    for name, value in source.options.items():
        if name.lower().startswith(_CLIENTS):
            properties.put(name[len(_CLIENTS) :], value)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        there = set(admin.listTopics().names().get())
        wanted = jvm.java.util.ArrayList()
        for topic in sorted(_chosen(source, there)):
            wanted.add(topic)
        found = admin.describeTopics(wanted).allTopicNames().get()
        return {topic: found[topic].topicId().toString() for topic in found}
    finally:
        admin.close()


def _chosen(source: Source, there: set[str]) -> set[str]:
    """Those of the topics that are there which a source reads."""
    options = {name.lower(): value for name, value in source.options.items()}
    if "subscribepattern" in options:
        return {topic for topic in there if re.fullmatch(options["subscribepattern"], topic)}
    if "assign" in options:
        return there.intersection(json.loads(options["assign"]))
    return there.intersection(part.strip() for part in options.get("subscribe", "").split(","))
