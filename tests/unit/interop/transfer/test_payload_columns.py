"""Values of types that a program registered as columns of a tape, and back."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from capstan.interop.timely import TypeCodec, codec_of
from capstan.interop.transfer.payload_columns import payload_array, payload_type, payload_values
from tests.support.custom_type import register_complex

register_complex()
VALUES = {
    "complex": [1 + 2j, -0.5j, 0j],
    "(complex, u8)": [(1j, 1), (2 + 0j, 255)],
    "Option<complex>": [None, 3 + 4j],
    "Vec<(u64, Option<complex>)>": [(), ((1, None), (2, 1 + 1j))],
    "Product<u64, complex>": [(1, 1j)],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_type_of_its_own_shape_is_kept_as_its_json(name):
    codec = codec_of(name)
    column = payload_array(codec, VALUES[name])
    assert column.type == payload_type(codec)
    assert payload_values(codec, column) == VALUES[name]


def test_its_column_is_text():
    assert payload_type(codec_of("complex")) == pa.struct([("value", pa.string())])
    column = payload_array(codec_of("complex"), [1 + 2j])
    assert column.to_pylist() == [{"value": "[1.0,2.0]"}]


def test_it_travels_with_the_form_of_its_recordings():
    """Tasks on other machines get the codec, and need not know the name."""
    codec = codec_of("(complex, Vec<complex>)")
    again = pickle.loads(pickle.dumps(codec))
    assert again == codec
    assert isinstance(again.parts[0], TypeCodec)
    out = bytearray()
    again.encode((1j, (2j,)), out)
    assert again.decode(bytes(out), 0)[0] == (1j, (2j,))


def test_half_a_surrogate_pair_is_kept_by_its_escape():
    values = ["\ud800", {"half": "\udc00 of it"}, "\U0001f600"]
    column = payload_array(None, values)
    assert column.field("json").to_pylist()[2] == '"\U0001f600"'
    assert payload_values(None, column) == values
