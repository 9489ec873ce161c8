"""Values of recorded types as columns of a tape, by the table in `docs/interop.md`, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

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
    kind = _type(record)
    return kind if _has_columns(record) else pa.struct([("value", kind)])


def payload_array(record: TypeCodec | None, values: Sequence[object]) -> pa.StructArray:
    """Records as the stream's columns; `NotBigintError` for a number that does not fit."""
    if record is None:
        return pa.StructArray.from_arrays([pa.array(map(json_text, values), pa.string())], ["json"])
    cells = values if _is_native(record) else [_cell(record, value) for value in values]
    try:
        column = pa.array(cells, _type(record))
    except (OverflowError, pa.ArrowInvalid):
        for value in values:
            _cell(record, value)
        raise
    return column if _has_columns(record) else pa.StructArray.from_arrays([column], ["value"])


def payload_values(record: TypeCodec | None, column: pa.StructArray) -> list[object]:
    """The records of the columns that `payload_array` made."""
    if record is None:
        return [json.loads(text) for text in column.field("json").to_pylist()]
    cells = column if _has_columns(record) else column.field("value")
    return [_value(record, value) for value in cells.to_pylist()]


def _has_columns(record: TypeCodec) -> bool:
    """Whether the parts of a record are the stream's columns."""
    return record.shape is TypeShape.TUPLE and bool(record.parts)


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
    if _has_columns(codec):
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


def _is_native(codec: TypeCodec) -> bool:
    """Whether Arrow takes the values of a type as they are."""
    return codec.shape is not TypeShape.OTHER and all(map(_is_native, codec.parts))


def _cell(codec: TypeCodec, value: Any) -> object:
    """A value as Arrow takes it; None for an option without a value."""
    if value is None:
        return None
    if codec.shape is TypeShape.INTEGER:
        return require_bigint(value)
    if codec.shape is TypeShape.TUPLE:
        return tuple(map(_cell, codec.parts, value))
    if codec.shape is TypeShape.LIST:
        return [_cell(codec.parts[0], element) for element in value]
    if codec.shape is TypeShape.OPTION:
        return _cell(codec.parts[0], value)
    return json_text(codec.to_json(value)) if codec.shape is TypeShape.OTHER else value


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
