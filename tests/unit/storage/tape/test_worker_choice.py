from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.storage.tape.worker_choice import WorkerChoice, number_in

SPELLINGS = [
    "1.0", "-1", "1e3", "01", "+1", "1_000", "\u0663", " 1 ", "0x1", "0b1", "0o7", "0x1p3", "NaN",
    "-Infinity", "inf", "1,000", "1 000", "1'000", "\uff11", "\u22121", ".5", "5.", "1d", "2.0f",
    "7L", "½", "1E-3", "100%", "-0.0", "1e400",
]  # fmt: skip
OTHERS = [
    "", " ", "a", "1a", "a1", "EWR", "e", "f", "x", "0x", "2013-03-01", "10:30", "10.0.0.1", "-",
    "true", "p/0", "null", "nanny", "1-2",
]  # fmt: skip


@pytest.mark.parametrize("label", SPELLINGS)
def test_numeric_labels_exclude_worker_numbers(label: str) -> None:
    assert number_in(label) is not None
    choice = WorkerChoice.among({0: "a", 1: label, 2: "b"})
    assert [choice.worker(str(number)) for number in (0, 1, 2)] == [None, None, None]
    assert [choice.worker(text) for text in ("a", label, "b")] == [0, 1, 2]


@pytest.mark.parametrize("label", OTHERS)
def test_other_labels_leave_numbers_to_the_workers(label: str) -> None:
    assert number_in(label) is None
    choice = WorkerChoice.among({0: "c", 1: label, 2: "2"})
    assert [choice.worker(str(number)) for number in (0, 1, 2, 3)] == [0, 1, 2, None]


@pytest.mark.parametrize("text", ["01", "+1", "-1", "1.0", " 1", "1_0", "\u0661", "1" * 5000, ""])
def test_a_number_is_chosen_in_plain_digits(text: str) -> None:
    assert WorkerChoice.among({n: f"w{n}" for n in range(11)}).worker(text) is None


def test_the_label_of_the_same_number_is_named() -> None:
    choice = WorkerChoice.among({0: "1.0", 1: "2.0", 2: "NaN"})
    assert choice.equal_label("1") == "1.0"
    assert choice.equal_label("+2.00") == "2.0"
    assert choice.equal_label("3") is None
    assert choice.equal_label("a") is None


labels = st.lists(
    st.one_of(st.sampled_from([*SPELLINGS, *OTHERS]), st.integers(-3, 9).map(str)),
    min_size=1, max_size=5, unique=True,
)  # fmt: skip


@given(labels, labels, st.integers(0, 9))
def test_what_a_text_means_depends_on_no_later_label(
    first: list[str], later: list[str], number: int
) -> None:
    both = list(dict.fromkeys([*first, *later]))
    before, after = (WorkerChoice.among(dict(enumerate(those))) for those in (first, both))
    one, two = before.worker(str(number)), after.worker(str(number))
    # A label of that very text is the only one that counts; else it chooses the same, or nothing.
    assert two in (one, None) or both[two] == str(number)
    for label in first:
        assert after.worker(label) == before.worker(label)
