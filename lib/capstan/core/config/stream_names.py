"""Names of the streams that one replay reads: by source of a pipeline, and as one text.

A source is a key, such as `orders`. When it reads several streams, each has a key of its own: the
source, a slash, and the stream, as in `orders/orders_eu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capstan.core.config.names import check_name
from capstan.errors import InvalidRequestError

_SOURCE = r"[^\s=,+/]+"
_STREAM = r"[a-z][a-z0-9_]{0,63}"
_FIRST = rf"\s*{_SOURCE}\s*=\s*{_STREAM}"
_READS = rf"{_FIRST}(\+{_STREAM})*\s*"
STREAMS_PATTERN = rf"^(\s*|{_FIRST}(\+{_STREAM})+\s*|{_READS}(,{_READS})+)$"
"""The pattern of the text of several streams, for forms; it may be empty."""

# No name has this character, so that the text of several streams is never the name of one.
_JOINT = "+"
_OF = "/"


def joined_streams(streams: Mapping[str, str]) -> str:
    """The streams as one text for ledgers, such as `orders+payments`: in order of their sources."""
    return _JOINT.join(streams[source] for source in sorted(streams))


def split_streams(text: str) -> tuple[str, ...]:
    """The streams in the text of `joined_streams`; that of one stream is its name."""
    return tuple(text.split(_JOINT))


def source_of(key: str) -> str:
    """The source of a key: `orders` of `orders/orders_eu`."""
    return key.partition(_OF)[0]


def keyed_streams(streams: Mapping[str, str | Sequence[str]]) -> dict[str, str]:
    """The streams by key, of sources with a stream or a list each; a list of one is that stream."""
    keyed: dict[str, str] = {}
    for source, names in streams.items():
        if isinstance(names, str) or len(names) == 1:
            keyed[source] = names if isinstance(names, str) else names[0]
        else:
            keyed |= {f"{source}{_OF}{name}": name for name in names}
    return keyed


def check_streams(streams: Mapping[str, str]) -> None:
    """Check the streams by key that a replay of several streams names."""
    for key, stream in streams.items():
        check_name("stream", stream)
        source, slash, of = key.partition(_OF)
        if not source or (slash and (of != stream or source in streams)):
            raise InvalidRequestError(
                "CAP-STREAMS",
                f"{key[:80]!r} does not name a source that reads {stream}",
                "name the source; when it reads several streams, each as SOURCE/STREAM",
            )
    if len(streams) == 1:
        [(source, stream)] = streams.items()
        raise InvalidRequestError(
            "CAP-STREAMS",
            f"streams names {stream} alone, for source {source}",
            "give a single stream as stream",
        )


def parse_streams(text: str) -> dict[str, str]:
    """The streams by key in `orders=eu+us,payments=payments`; none in a plain name."""
    return keyed_streams({key: split_streams(value) for key, value in parse_pairs(text).items()})


def parse_pairs(text: str) -> dict[str, str]:
    """The values by source in `orders=12,payments=7`; none in a text without `=`."""
    if "=" not in text:
        return {}
    pairs: dict[str, str] = {}
    for part in text.split(","):
        source, equals, value = (word.strip() for word in part.partition("="))
        if not (source and equals and value) or source in pairs:
            raise InvalidRequestError(
                "CAP-STREAMS",
                f"{part.strip()[:80]!r} does not name another source and what it reads",
                "give each source once, as in orders=orders_eu,payments=payments",
            )
        pairs[source] = value
    return pairs
