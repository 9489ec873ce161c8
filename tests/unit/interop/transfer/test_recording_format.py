"""The form of recordings: above all the order of their times, with and without their type."""

from __future__ import annotations

import json

import pytest

from capstan.core.protocol import Release
from capstan.core.times import PAIR, PRODUCT, Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.interop.transfer.export_files import form_of, release_in
from capstan.interop.transfer.recording_format import Form, Format
from capstan.storage.lake import Lake
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Tape

PAIRS, PRODUCTS = "(u64, u64)", "Product<u64,u64>"


def tape_of(order, /, **imported):
    axes = tuple(Coordinate.of(name, Kind.BIGINT, 0) for name in ("t0", "t1"))
    settings = TapeSettings({"import": imported} if imported else {})
    return Tape("s", Lake.at("/nowhere").stream("s"), TimeType(axes, order), settings)


def found(folder, case, **options):
    (folder / "case.json").write_text(json.dumps(case))
    (folder / "worker-0.jsonl").write_text("")
    return Form.of_folder(folder, Format.JSONL, **options)


def test_an_export_without_types_states_the_order_of_pairs(tmp_path):
    form = form_of(tape_of(PAIR), Format.JSONL)
    assert form.to_json() == {"minimum": [0, 0], "order": "lexicographic"}
    again = found(tmp_path, form.to_json())
    assert again == form
    assert again.time_type == tape_of(PAIR).time_type
    # Of others it states nothing more than it did.
    assert form_of(tape_of(PRODUCT), Format.JSONL).to_json() == {"minimum": [0, 0]}
    typed = {"minimum": [0, 0], "record_type": "u64", "time_type": PAIRS}
    assert form_of(tape_of(PAIR, **typed), Format.JSONL).to_json() == typed
    # What an import stores is what its exports have.
    assert form_of(tape_of(PAIR, **form.to_json()), Format.JSONL) == form


def test_the_order_of_a_type_of_times_alone_is_kept(tmp_path):
    form = found(tmp_path, {}, time_type="(u64, u64)", minimum=[0, 0])
    assert (form.order, form.time_type.order, form.types) == (PAIR, PAIR, None)
    assert Form.from_options(Format.JSONL, time_type=PAIRS) == form
    assert found(tmp_path, {}, time_type=PRODUCTS).to_json() == {"minimum": [0, 0]}
    assert found(tmp_path, {"minimum": [1, 2]}, time_type=PAIRS).minimum == [1, 2]
    case = {"minimum": [0, 0], "time_type": PAIRS}
    assert found(tmp_path, case) == form
    assert found(tmp_path, {**case, "time_type": "MyTime"}).order == PRODUCT
    with pytest.raises(InvalidRequestError, match="mix pairs and Products"):
        found(tmp_path, {}, time_type="Product<u64, (u64, u64)>").require_tape()
    # One coordinate has one order.
    assert found(tmp_path, {"order": "lexicographic"}).to_json() == {"minimum": 0}
    for case, options, code in (
        ({}, {"time_type": PAIRS, "minimum": 0}, "CAP-TIME"),
        ({}, {"time_type": "MyTime"}, "CAP-TYPE"),
        ({"order": "random"}, {}, "CAP-TIME-TYPE"),
        ({"order": "lexicographic", "time_type": PRODUCTS}, {}, "CAP-TIME-TYPE"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            found(tmp_path, case, **options)
        assert refused.value.code == code


def test_a_type_of_records_alone_is_refused(tmp_path):
    for given in (
        lambda: found(tmp_path, {"minimum": [0, 0]}, record_type="u64"),
        lambda: Form.from_options(Format.JSONL, record_type="u64"),
        lambda: form_of(tape_of(PRODUCT), Format.JSONL, record_type="u64"),
    ):
        with pytest.raises(InvalidRequestError, match="type") as refused:
            given()
        assert refused.value.code == "CAP-FILE"


@pytest.mark.parametrize("record_type", [None, "u64"])
@pytest.mark.parametrize(("order", "wrong"), [(PAIR, PRODUCTS), (PRODUCT, PAIRS)])
def test_a_type_of_times_in_another_order_is_refused(order, wrong, record_type):
    right = PAIRS if order is PAIR else PRODUCTS
    form = form_of(tape_of(order), Format.JSONL, right, record_type)
    assert form.time_type == tape_of(order).time_type
    with pytest.raises(InvalidRequestError, match=r"stream s has times of 2 parts") as refused:
        form_of(tape_of(order), Format.JSONL, wrong, record_type)
    assert refused.value.code == "CAP-TIME-TYPE"


def test_pairs_on_a_tape_of_products_are_exported_as_they_came():
    tape = tape_of(PRODUCT, minimum=[0, 0], record_type="u64", time_type=PAIRS)
    assert tape.settings.pairs == PAIRS
    assert form_of(tape, Format.TIMELY).order == PAIR
    assert form_of(tape, Format.JSONL, "(u64,u64)").order == PAIR
    other = tape_of(PRODUCT, minimum=[0, 0], record_type="u64", time_type=PRODUCTS)
    with pytest.raises(InvalidRequestError, match="ordered part by part"):
        form_of(other, Format.JSONL, PAIRS)


def test_the_release_of_a_stream_needs_none_of_its_types():
    types = {"minimum": [0, 0], "record_type": "my_custom", "time_type": PRODUCTS}
    tape = tape_of(PRODUCT, **types, timely="0.32")
    assert release_in(tape) is Release.V032
    assert release_in(tape, "0.31") is Release.V031
    assert release_in(tape_of(PRODUCT, **types)) is Release.V031
    with pytest.raises(InvalidRequestError, match=r"0\.33"):
        release_in(tape, "0.33")
