"""compare(): agrees, refuses, renders, and carries its numbers as metadata."""

import pytest

from course_kit.accounts import MemoryAccount
from course_kit.compare import ComparisonError, compare
from course_kit.units import Bytes, Flops, Ratio


class Typed:
    """A stand-in for the result of `ask`."""

    def __init__(self, value, unit):
        self.value, self.unit = value, unit


@pytest.mark.parametrize(
    ("predicted", "measured", "tolerance", "passes"),
    [
        (Bytes(1000), Bytes(1001), 0, False),
        (Bytes(1000), Bytes(1010), 0.01, True),
        (Bytes(1000), Bytes(990), 0.01, True),
        (Bytes(1000), Bytes(1011), 0.01, False),
        (Bytes(0), Bytes(0), 0, True),
        (Bytes(0), Bytes(1), 0.5, False),
        (Bytes(1000), Bytes(5), None, True),
        (1.0, float("nan"), 0.1, False),
    ],
)
def test_the_tolerance_is_relative_to_the_prediction(predicted, measured, tolerance, passes):
    if passes:
        assert compare(predicted=predicted, measured=measured, tolerance=tolerance).ok
    else:
        with pytest.raises(ComparisonError):
            compare(predicted=predicted, measured=measured, tolerance=tolerance)


def test_one_wrong_row_of_an_account_fails_and_is_named_with_its_numbers():
    right = MemoryAccount(parameters=Bytes(100), gradients=Bytes(100))
    wrong = MemoryAccount(parameters=Bytes(100), gradients=Bytes(96), temporaries=Bytes(4))
    with pytest.raises(ComparisonError, match="gradients: measured 96 is 0.96 × the predicted 100") as caught:
        compare(predicted=right, measured=wrong)
    assert [row.name for row in caught.value.comparison.rows if not row.ok] == ["gradients", "temporaries"]


def test_the_guess_stands_in_its_column_and_an_empty_box_is_an_empty_cell():
    account = MemoryAccount(parameters=Bytes(2**20))
    rows = compare(predicted=account, measured=account).rows
    assert [row.name for row in rows] == [*MemoryAccount(), "total"], "what is empty on both sides is a claim too"
    assert "3.00 MiB" in str(compare(guess=Typed(3, "MiB"), predicted=account, measured=account))
    empty = compare(guess=Typed(None, "MiB"), predicted=account, measured=account)
    head, rows = empty._table()
    assert head[1] == "your guess" and {line[1] for line in rows} == {""}
    assert "guess" not in str(compare(predicted=account, measured=account)), "nobody was asked: no column"
    assert "–" not in str(empty) and str(empty).count("\n") == len(account) + 1, "no other number, no note"
    table = compare(predicted={"a": 1, "b": 2}, measured={"a": 1, "b": 2}, guess={"b": 3})
    assert [row.guess for row in table.rows] == [None, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predicted": Bytes(1), "measured": Flops(1)}, "compares Bytes with Flops"),
        ({"predicted": {"a": 1}, "measured": {"b": 1}}, "same rows.*a, b"),
        ({"predicted": 1, "measured": 1, "tolerance": -1}, "tolerance must be 0 or more"),
        ({"predicted": Bytes(1), "measured": Bytes(1), "guess": Typed(1, "GFLOP")}, "guess is in GFLOP"),
        ({"predicted": Bytes(1), "measured": Bytes(1), "guess": Typed(None, "GFLOP")}, "guess is in GFLOP"),
        ({"predicted": {"a": 1, "b": 2}, "measured": {"a": 1, "b": 2}, "guess": 1}, "which row is guessed"),
        ({"predicted": {"a": 1, "b": 2}, "measured": {"a": 1, "b": 2}, "guess": {"c": 1}}, "no row c to guess"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Bytes(4096), "1, exactly"),
        (Bytes(0), "both 0"),
        (Ratio(6.103515625e-05), "2^-14"),
        (Ratio(2**-17), "2^-17"),
        (Ratio(2**-5), " 0.03125 "),
        (Ratio(0.25), "0.25"),
        (Ratio(3.4e38), "3.4e+38"),
        (Ratio(5.5452), "5.5452"),
    ],
)
def test_equal_numbers_pass_at_tolerance_zero_and_ratios_of_any_size_keep_their_digits(value, text):
    table = compare(predicted=value, measured=value)
    assert table.ok and text in str(table) and "e-0" not in str(table)


def test_the_bundle_holds_html_text_and_the_numbers():
    table = compare(predicted={"<p>": Bytes(10)}, measured={"<p>": Bytes(11)}, tolerance=0.2)
    data, metadata = table._repr_mimebundle_()
    assert "&lt;p&gt;" in data["text/html"] and "<p>" in data["text/plain"]
    (check,) = metadata["course"]["checks"]  # type: ignore[index]
    assert check == {"name": "<p>", "predicted": 10, "measured": 11, "ratio": 1.1, "tolerance": 0.2, "ok": True}
