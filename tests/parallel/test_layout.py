"""Layouts as data: what a product of cut tensors is, and which collectives follow."""

import pytest

from course_lib.parallel.layout import Layout, Step, contract, steps

X = Layout("batch seq width")
COLUMNS = Layout("width hidden", cut={"hidden": "tensor"})
ROWS = Layout("hidden width", cut={"hidden": "tensor"})


def test_columns_then_rows_need_one_all_reduce():
    between = contract(X, COLUMNS)
    assert between == Layout("batch seq hidden", cut={"hidden": "tensor"})
    assert steps(contract(between, ROWS), X) == [Step("all_reduce", "tensor")]


def test_two_column_cuts_in_a_row_do_not_fit_and_it_says_what_to_do():
    again = Layout("hidden width", cut={"width": "tensor"})
    with pytest.raises(ValueError, match="hidden is cut over tensor in .* and whole in .*all_gather along hidden"):
        contract(contract(X, COLUMNS), again)


def test_sequence_parallelism_turns_the_all_reduce_into_two_halves():
    stream = Layout("batch seq width", cut={"seq": "tensor"})
    assert steps(stream, X) == [Step("all_gather", "tensor", "seq")]
    assert steps(contract(contract(X, COLUMNS), ROWS), stream) == [Step("reduce_scatter", "tensor", "seq")]


def test_an_all_to_all_moves_the_cut_and_cutting_is_free():
    by_width = Layout("batch seq width", cut={"width": "tensor"})
    by_seq = Layout("batch seq width", cut={"seq": "tensor"})
    assert steps(by_width, by_seq) == [Step("all_to_all", "tensor", "seq", "width")]
    assert steps(X, by_seq) == [] and steps(X, X) == []
    assert str(steps(by_width, by_seq)[0]) == "all_to_all along seq, joins width over tensor"


def test_axes_do_not_mix():
    """Data parallelism cuts the batch; a weight's gradient is then a sum over the data axis, whatever tensor does."""
    x = Layout("batch width", cut={"batch": "data"})
    grad = Layout("batch hidden", cut={"batch": "data", "hidden": "tensor"})
    weight_grad = contract(x, grad)
    assert weight_grad == Layout("width hidden", cut={"hidden": "tensor"}, partial=frozenset({"data"}))
    assert steps(weight_grad, COLUMNS) == [Step("all_reduce", "data")]
    sharded = Layout("width hidden", cut={"hidden": "tensor", "width": "data"})
    assert steps(weight_grad, sharded) == [Step("reduce_scatter", "data", "width")]


def test_a_layout_says_what_is_cut_over_which_axis():
    layout = Layout("batch seq hidden", cut={"batch": "data", "hidden": "tensor"})
    assert str(layout) == "batch/data seq hidden/tensor"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Layout("a a"), "name of its own"),
        (lambda: Layout("a b", cut={"c": "tensor"}), "c is cut, but the dims are 'a b'"),
        (lambda: Layout("a b", cut={"a": "tensor", "b": "tensor"}), "mesh axis tensor is used twice"),
        (lambda: contract(Layout("a b"), Layout("c d")), "share no dim"),
        (lambda: steps(Layout("a b"), Layout("b a")), "their dims differ"),
        (lambda: steps(X, Layout("batch seq width", partial=frozenset({"tensor"}))), "no sum over tensor"),
        (
            lambda: contract(Layout("a b", partial=frozenset({"x"})), Layout("b c", partial=frozenset({"y"}))),
            "terms of sums: finish one",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
