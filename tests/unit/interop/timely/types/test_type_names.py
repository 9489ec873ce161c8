"""Types: how they are named, their bytes, their JSON, and what they refuse."""

from __future__ import annotations

import math
import pickle
import struct

import pytest

from capstan.core.times import Time
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    CoordinateCodec,
    EventTypes,
    MisfitError,
    ShortError,
    TimeCodec,
    TypeCodec,
    TypeShape,
    codec_of,
    register_type,
)


def encoded(name, value):
    out = bytearray()
    codec_of(name).encode(value, out)
    return bytes(out)


# What bincode 1.3 writes with its defaults.
GOLDEN = [
    ("u8", 255, "ff"),
    ("i8", -1, "ff"),
    ("u16", 258, "0201"),
    ("i32", -2, "feffffff"),
    ("u64", 2**64 - 1, "ff" * 8),
    ("i64", -(2**63), "00" * 7 + "80"),
    ("usize", 1, "01" + "00" * 7),
    ("isize", -1, "ff" * 8),
    ("u128", 2**128 - 1, "ff" * 16),
    ("i128", -1, "ff" * 16),
    ("f32", 1.5, "0000c03f"),
    ("f64", -0.0, "00" * 7 + "80"),
    ("bool", True, "01"),
    ("char", "\u00e9", "c3a9"),
    ("char", "\U0001f600", "f09f9880"),
    ("string", "h\u00e9", "0300000000000000" + "68c3a9"),
    ("string", "", "00" * 8),
    ("bytes", b"\x00\xff", "0200000000000000" + "00ff"),
    ("duration_nanos", 3_000_000_001, "0300000000000000" + "01000000"),
    ("()", None, ""),
    ("(u8, string)", (1, "a"), "01" + "0100000000000000" + "61"),
    ("(u8,)", (7,), "07"),
    ("Product<u16,Product<u8,u8>>", (1, 2, 3), "0100" + "02" + "03"),
    ("Vec<u16>", (1, 2), "0200000000000000" + "0100" + "0200"),
    ("[u16; 2]", (1, 2), "0100" + "0200"),
    ("Option<u8>", None, "00"),
    ("Option<u8>", 5, "0105"),
    ("Vec<Option<(u8, bool)>>", ((1, True), None), "0200000000000000" + "010101" + "00"),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOLDEN)
def test_bytes_are_those_of_bincode(name, value, expected):
    data = bytes.fromhex(expected)
    codec = codec_of(name)
    assert encoded(name, value) == data
    assert codec.decode(b"\x55" + data, 1) == (value, 1 + len(data))
    assert codec.decode_many(data * 3, 0, 3) == ((value,) * 3, 3 * len(data))
    assert codec.from_json(codec.to_json(value)) == value
    assert len(data) >= codec.least
    for cut in range(len(data)):
        with pytest.raises(ShortError):
            codec.decode(data[:cut], 0)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("  U64 ", "u64"),
        ("String", "string"),
        ("alloc::vec::Vec<alloc::string::String>", "Vec<string>"),
        ("core::time::Duration", "duration_nanos"),
        ("unit", "()"),
        ("((u64))", "u64"),
        ("(u64, string,)", "(u64, string)"),
        ("tuple<u64,string>", "(u64, string)"),
        ("product< u64 , product<i64,duration>>", "Product<u64,Product<i64,duration_nanos>>"),
        ("option<[ u8 ;4]>", "Option<[u8; 4]>"),
    ],
)
def test_names(name, canonical):
    codec = codec_of(name)
    assert codec.name == canonical
    assert codec_of(canonical) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("", "at its end"),
        ("u65", "character 1"),
        ("(u64", "at its end"),
        ("u64)", "character 4"),
        ("(,)", "character 2"),
        ("(u64 string)", "character 6"),
        ("Vec", "at its end"),
        ("Vec<>", "character 5"),
        ("Vec<u64,u64>", "2 types"),
        ("Product<u64>", "1 types"),
        ("[u64]", "; expected"),
        ("[u64; x]", "a length is expected"),
        ("[u64; 0]", "1 to 65,536"),
        ("[u64; 65537]", "1 to 65,536"),
        ("[[u64; 65536]; 65536]", "1 to 65,536"),
        ("Vec<()>", "without bytes"),
        ("[((), ()); 3]", "without bytes"),
        ("Option<()>", "None"),
        ("Option<Option<u64>>", "None"),
        ("&str", "character 1"),
        ("u64\x00", "character 4"),
        ("(" * 40, "deeper"),
        ("Vec<" * 40 + "u8" + ">" * 40, "deeper"),
        ("u64," * 1000, "1000 characters"),
        ("\u00fc64", "character 1"),
    ],
)
def test_names_of_nothing(name, about):
    with pytest.raises(InvalidRequestError, match="CAP-TYPE") as refused:
        codec_of(name)
    assert about in refused.value.message
    assert refused.value.hint
    assert len(refused.value.message) < 1300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("u8", 256),
        ("u8", -1),
        ("u64", 2**64),
        ("i64", -(2**63) - 1),
        ("u128", 2**128),
        ("u128", -1),
        ("u64", True),
        ("u64", 1.0),
        ("u64", "1"),
        ("u64", None),
        pytest.param("u64", 10**6000, id="u64-huge"),
        ("f64", 1),
        ("f32", 0.1),
        ("f32", 1e300),
        ("bool", 1),
        ("char", ""),
        ("char", "ab"),
        ("char", "\ud800"),
        ("string", b"a"),
        ("string", "\ud800"),
        ("bytes", "a"),
        ("duration_nanos", -1),
        ("duration_nanos", 2**64),
        ("()", 0),
        ("(u8, u8)", (1,)),
        ("(u8, u8)", 1),
        ("(u8, u8)", (1, 256)),
        ("Vec<u8>", "ab"),
        ("Vec<u8>", (1, True)),
        ("[u8; 2]", (1,)),
        ("Option<u8>", 256),
    ],
)
def test_values_of_other_types(name, value):
    with pytest.raises(MisfitError) as refused:
        encoded(name, value)
    assert len(str(refused.value)) < 200
    codec = codec_of(name)
    with pytest.raises(MisfitError):
        codec.encode_many([value], bytearray())
    if name not in {"f64", "bytes"}:
        with pytest.raises(MisfitError):
            codec.from_json(value)


@pytest.mark.parametrize(
    ("name", "data", "about"),
    [
        ("bool", "02", "not a bool"),
        ("Option<u8>", "02", "not an option"),
        ("string", "0100000000000000ff", "not UTF-8"),
        ("char", "ff808080", "not UTF-8"),
        ("duration_nanos", "0000000000000000" + "00ca9a3b", "not a duration"),
        ("duration_nanos", "ffffffffffffffff" + "00000000", "not a duration"),
        ("f32", "0100807f", "signalling"),
    ],
)
def test_bytes_that_are_no_value(name, data, about):
    with pytest.raises(MisfitError, match=about):
        codec_of(name).decode(bytes.fromhex(data), 0)


@pytest.mark.parametrize(
    ("bits", "written"),
    [
        ("7ff0000000000000", "Infinity"),
        ("fff0000000000000", "-Infinity"),
        ("7ff8000000000000", "NaN"),
        ("fff8000000000000", "NaN:fff8000000000000"),
        ("7ff8000000000001", "NaN:7ff8000000000001"),
        ("8000000000000000", -0.0),
    ],
)
def test_floats_are_kept_bit_by_bit(bits, written):
    data = bytes.fromhex(bits)[::-1]
    codec = codec_of("f64")
    value, _ = codec.decode(data, 0)
    to_json = codec.to_json(value)
    assert to_json == written
    assert struct.pack("<d", codec.from_json(to_json)) == data
    assert encoded("f64", value) == data


@pytest.mark.parametrize(
    "value", ["nan", "NaN:", "NaN:00", "NaN:3ff0000000000000", "x:fff8000000000000", [], True]
)
def test_text_that_is_no_float(value):
    with pytest.raises(MisfitError):
        codec_of("f64").from_json(value)


def test_whole_numbers_of_json_are_floats_where_none_is_rounded():
    assert codec_of("f64").from_json(2**53) == 2.0**53
    assert math.copysign(1, codec_of("f64").from_json(-0.0)) == -1
    for value in (2**53 + 1, 10**400):
        with pytest.raises(MisfitError):
            codec_of("f64").from_json(value)


@pytest.mark.parametrize("value", ["a", "a===", "\u00e9", 1, None])
def test_text_that_is_no_base64(value):
    with pytest.raises(MisfitError):
        codec_of("bytes").from_json(value)


def test_json_has_lists_and_programs_tuples():
    codec = codec_of("(u8, Vec<bytes>, Option<[f64; 1]>)")
    value = codec.from_json([1, ["AP8="], [2]])
    assert value == (1, (b"\x00\xff",), (2.0,))
    assert codec.to_json(value) == [1, ["AP8="], [2.0]]
    assert (codec.plain, codec_of("(u8, Vec<string>)").plain) == (False, True)
    assert codec.shape is TypeShape.TUPLE
    assert [part.name for part in codec.parts] == ["u8", "Vec<bytes>", "Option<[f64; 1]>"]


class _Celsius(CoordinateCodec):
    __slots__ = ()

    def decode(self, data, at):
        value, at = codec_of("i16").decode(data, at)
        return value * 2, at

    def encode(self, value, out):
        codec_of("i16").encode(value // 2, out)


def test_a_program_registers_types_of_its_own():
    celsius = _Celsius("Celsius", 2, minimum=-400, maximum=400)
    register_type("Celsius", celsius)
    register_type("celsius", celsius)
    register_type("Reading", "(celsius, string)")
    assert codec_of("sensors::Reading").name == "(Celsius, string)"
    assert encoded("reading", (20, "")) == b"\x0a\x00" + bytes(8)
    assert TimeCodec.of("Product<celsius,u64>").minimum == Time.of(-400, 0)
    for name, codec in [
        ("celsius", "u64"), ("u64", "i64"), ("usize", "i64"), ("Vec", "i64"), ("a b", "u8"),
        ("", "u8"), ("1a", "u8"),
    ]:  # fmt: skip
        with pytest.raises(InvalidRequestError, match="CAP-TYPE"):
            register_type(name, codec)


def test_a_codec_says_itself_what_it_does_not_do():
    with pytest.raises(TypeError):
        TypeCodec("x", 1)


@pytest.mark.parametrize(
    "name", ["string", "()", "bool", "f64", "u128", "Vec<u64>", "(u64, string)", "[u64; 2]"]
)
def test_types_that_times_cannot_have(name):
    with pytest.raises(InvalidRequestError, match="CAP-TYPE"):
        TimeCodec.of(name)


def test_times():
    time = TimeCodec.of("Product<Product<u8,i64>,duration_nanos>")
    assert (time.bare, time.least, len(time.coordinates)) == (False, 1 + 8 + 12, 3)
    assert time.minimum == Time.of(0, -(2**63), 0)
    out = bytearray()
    time.encode((1, 2, 3), out)
    assert time.decode(bytes(out), 0) == (Time.of(1, 2, 3), 21)
    for wrong in [(1, 2), (256, 0, 0), (0, 2**63, 0), (0, 0, -1)]:
        with pytest.raises(MisfitError):
            time.encode(wrong, bytearray())
    assert TimeCodec.of("(u64,)").bare is False


@pytest.mark.parametrize(
    ("time", "minimum"),
    [
        ("u64", -1),
        ("u64", [0]),
        ("i64", 2**63),
        ("Product<u64,u64>", 0),
        ("Product<u64,u64>", [0]),
        ("Product<u64,u64>", [0, 0, 0]),
        ("u64", "0"),
        ("u64", 1.0),
        ("u64", True),
        ("u64", 2**64),
    ],
)
def test_minima_that_are_no_time(time, minimum):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        EventTypes.of(time, "u64", minimum)


def test_types_go_through_json_and_between_processes():
    types = EventTypes.of("Product<u64,i64>", "(string, f64)", [0, -5])
    assert types.to_json() == {
        "time_type": "Product<u64,i64>",
        "record_type": "(string, f64)",
        "minimum": [0, -5],
    }
    assert EventTypes.from_json(types.to_json()) == types
    assert pickle.loads(pickle.dumps(types)) == types
    assert EventTypes.of("i64", "u64").minimum_json == -(2**63)
    with pytest.raises(InvalidRequestError, match="CAP-TYPE"):
        EventTypes.from_json({"time_type": "u64"})
