"""Values of Avro in SQL: `from_avro`, and the bytes behind a value, which it does not look at."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from capstan.capture.source.text.text_parsers import column_of, kind_of

_LENGTH = 16
_REST = {
    "name": "rest",
    "type": {"type": "fixed", "name": "capstan_rest", "size": _LENGTH},
}


def is_avro(node: Any) -> bool:
    """Whether a node of an analysed plan decodes Avro by a schema that is known beforehand."""
    return kind_of(node) == "FromAvro" and kind_of(node.second()) == "Literal"


def with_rest(node: Any) -> Column:
    """The value, in hexadecimal, if bytes follow what `from_avro` decodes of it; else null.

    A hash of the value is put behind it, and decoded after it: if anything stands between them,
    that is decoded in its place.
    """
    value = column_of(node.first())
    behind = F.unhex(F.md5(value))
    written, read = (
        json.dumps({"type": "record", "name": "capstan_whole", "fields": fields})
        for fields in (
            [{"name": "value", "type": json.loads(str(node.second().value()))}, _REST],
            [_REST],
        )
    )
    options = {"avroSchema": read, "mode": "PERMISSIVE"}
    rest = from_avro(F.concat(value, behind), written, options).getField("rest")
    return F.when(rest != behind, F.hex(value))
