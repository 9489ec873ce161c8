"""Converts values of recorded types to columns of a tape and back; uses only Arrow in tasks.

| type | column |
| --- | --- |
| integers, durations | BIGINT; a larger number is refused |
| `f32`, `f64` | FLOAT, DOUBLE |
| `bool`, `char`, `string`, `bytes` | BOOLEAN, STRING, STRING, BINARY |
| tuples, `Product` | STRUCT of `f0`, `f1`, ... |
| `Vec`, arrays | ARRAY |
| `Option` | the type, nullable |
| `()` | BOOLEAN, always null |
| registered types of a shape of their own | STRING: their JSON |
| any JSON | STRING: its text |

The fields of a tuple are the stream's columns. Any other type is one column, `value`; records
without a type are one column, `json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from capstan.core.protocol import json_text
from capstan.errors import InvalidRequestError
from capstan.interop.timely import TypeCodec, TypeShape

_BIGINT: Final = (-(2**63), 2**63 - 1)


class NotBigintError(ValueError):
    """Raised for a number that does not fit a BIGINT; the text is the number."""


def payload_type(record: TypeCodec | None) -> pa.StructType:
    """The stream's columns for records of a type; None stands for any JSON."""
    if record is None:
        return pa.struct([("json", pa.string())])
    if record.shape is TypeShape.TUPLE and record.parts:
        columns = _type(record)
        assert isinstance(columns, pa.StructType)
        return columns
    return pa.struct([("value", _type(record))])


def payload_array(record: TypeCodec | None, values: Sequence[object]) -> pa.StructArray:
    """Records as the stream's columns."""
    if record is None:
        return pa.StructArray.from_arrays([pa.array(map(json_text, values), pa.string())], ["json"])
    if record.shape is TypeShape.TUPLE and record.parts:
        return _array(record, values)
    return pa.StructArray.from_arrays([_array(record, values)], ["value"])


def payload_values(record: TypeCodec | None, column: pa.StructArray) -> list[object]:
    """The records of the columns that `payload_array` made."""
    if record is None:
        return [json.loads(text) for text in column.field("json").to_pylist()]
    if record.shape is TypeShape.TUPLE and record.parts:
        return [_value(record, value) for value in column.to_pylist()]
    return [_value(record, value) for value in column.field("value").to_pylist()]


def require_bigint(value: int) -> int:
    """The number itself."""
    if not _BIGINT[0] <= value <= _BIGINT[1]:
        raise NotBigintError(str(value))
    return value


_PLAIN: Final = {
    TypeShape.INTEGER: pa.int64(),
    TypeShape.BOOL: pa.bool_(),
    TypeShape.TEXT: pa.string(),
    TypeShape.BYTES: pa.binary(),
    TypeShape.NONE: pa.bool_(),
    TypeShape.OTHER: pa.string(),
}


def _type(codec: TypeCodec) -> pa.DataType:
    if codec.shape in _PLAIN:
        return _PLAIN[codec.shape]
    if codec.shape is TypeShape.FLOAT:
        return pa.float32() if codec.name == "f32" else pa.float64()
    if codec.shape is TypeShape.TUPLE and codec.parts:
        return pa.struct([(f"f{i}", _type(part)) for i, part in enumerate(codec.parts)])
    if codec.shape is TypeShape.LIST:
        return pa.list_(_type(codec.parts[0]))
    if codec.shape is TypeShape.OPTION and codec.parts[0].shape not in (
        TypeShape.OPTION,
        TypeShape.NONE,
    ):
        return _type(codec.parts[0])
    raise InvalidRequestError(
        "CAP-TYPE",
        f"a tape has no column for records of {codec.name}",
        "use integers, floats, bool, text, bytes, or tuples, lists and options of them",
        type=codec.name,
    )


def _array(codec: TypeCodec, values: Sequence[object]) -> pa.Array:
    """A column of values, None among them for an option without a value."""
    if codec.shape is TypeShape.OPTION:
        return _array(codec.parts[0], values)
    if codec.shape is TypeShape.INTEGER:
        try:
            return pa.array(values, pa.int64())
        except (OverflowError, pa.ArrowInvalid):
            for value in values:
                if isinstance(value, int):
                    require_bigint(value)
            raise
    if codec.shape is TypeShape.TUPLE:
        rows = [
            value if isinstance(value, tuple) else (None,) * len(codec.parts) for value in values
        ]
        fields = [_array(part, [row[i] for row in rows]) for i, part in enumerate(codec.parts)]
        absent = pa.array([value is None for value in values], pa.bool_())
        names = [f"f{i}" for i in range(len(fields))]
        return pa.StructArray.from_arrays(fields, names, mask=absent)
    if codec.shape is TypeShape.LIST:
        return _list(codec.parts[0], values)
    if codec.shape is TypeShape.OTHER:
        texts = [None if value is None else json_text(codec.to_json(value)) for value in values]
        return pa.array(texts, pa.string())
    return pa.array(values, _type(codec))


def _list(part: TypeCodec, values: Sequence[object]) -> pa.ListArray:
    flat: list[object] = []
    offsets: list[int | None] = []
    for value in values:
        offsets.append(None if value is None else len(flat))
        if isinstance(value, tuple):
            flat += value
    offsets.append(len(flat))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _array(part, flat))


def _value(codec: TypeCodec, value: object) -> object:
    """A column's value as its codec expects it: tuples instead of Arrow's lists and mappings."""
    if value is None:
        return None
    if codec.shape is TypeShape.OPTION:
        return _value(codec.parts[0], value)
    if codec.shape is TypeShape.TUPLE and isinstance(value, dict):
        return tuple(_value(part, value[f"f{i}"]) for i, part in enumerate(codec.parts))
    if codec.shape is TypeShape.LIST and isinstance(value, list):
        return tuple(_value(codec.parts[0], element) for element in value)
    if codec.shape is TypeShape.OTHER:
        return codec.from_json(json.loads(str(value)))
    return value
