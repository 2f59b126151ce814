"""Checks of labs: what holds passes, what does not is explained, and no answer defines its own equality."""

from __future__ import annotations

import linecache
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit.accounts import ModelledBytes
from course_kit.checks import CheckFailed, check
from course_kit.units import Bytes, Count, Flops, Quantity


class Yes:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class YesTensor(torch.Tensor):
    """A tensor whose comparisons always hold."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.tensor(False)


def refused(check_function: Any, *args: Any, **kwargs: Any) -> str:
    """The text of the refusal; it must come."""
    with pytest.raises(CheckFailed) as caught:
        check_function(*args, **kwargs)
    return str(caught.value)


class ChecksMeanwhile:
    """While it is compared, another thread makes a check of its own."""

    def __ne__(self, other: object) -> bool:
        elsewhere = threading.Thread(target=check.that, args=(True, "in another thread"))
        elsewhere.start()
        elsewhere.join()
        return False


def test_a_check_inside_another_one_silences_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    check.equal([ChecksMeanwhile()], [ChecksMeanwhile()], "a list")
    assert capsys.readouterr().out == "✓ in another thread\n✓ a list\n"


class MyBytes(ModelledBytes):
    """Equal to everything, and of a kind of bytes."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = ModelledBytes.__hash__


def test_modelled_bytes_are_bytes_and_nothing_else_is() -> None:
    check.equal(ModelledBytes(5), Bytes(5), "bytes")
    check.equal(Bytes(5), ModelledBytes(5), "bytes")
    assert "a number" in refused(check.at_most, MyBytes(9), Bytes(5), "bytes")
    assert "MyBytes" in refused(check.equal, MyBytes(9), Bytes(5), "bytes")


class AnyNumber(Quantity, int):
    """Equal to everything, and of a kind that the course did not make."""

    units, auto_units = Count.units, Count.auto_units

    def __ne__(self, other: object) -> bool:
        return False


def test_an_answer_brings_no_equality_of_its_own() -> None:
    assert "AnyNumber" in refused(check.equal, AnyNumber(0), 12345, "a number")
    disguised, right = torch.zeros(2), torch.ones(2)
    disguised.detach = lambda: right  # type: ignore[method-assign]
    assert "expected" in refused(check.close, disguised, right, "ones")
    assert "expected" in refused(check.equal, disguised, right, "ones")


def test_what_holds_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    check.equal([1, 2.0, "x"], [1, 2.0, "x"], "a list")
    check.equal(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), "a tensor with NaN")
    check.equal({"a": 1}, {"a": 1}, "a dict")
    check.close(0.1 + 0.2, 0.3, "a sum", operations=2)
    check.at_most(Bytes(10), Bytes(10), "bytes")
    check.that(True, "a fact")
    assert capsys.readouterr().out == "✓ a list\n✓ a tensor with NaN\n✓ a dict\n✓ a sum\n✓ bytes\n✓ a fact\n"


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (Yes(), 3),
        (Yes(), "x"),
        ([Yes()], [3]),
        ({"a": Yes()}, {"a": 3}),
        (True, 1),
        (1, True),
        (1.0, 1),
        (torch.tensor(3), 3),
        (YesTensor([1.0]), torch.tensor([2.0])),
        (Flops(3), Bytes(3)),
    ],
)
def test_types_come_before_values(got: object, expected: object) -> None:
    assert "expected" in refused(check.equal, got, expected, "this")


def test_numbers_of_any_kind_are_numbers() -> None:
    check.equal(2, 2.0, "an int for a float")
    check.equal(Bytes(8), 8, "a quantity for an int")
    check.close(Flops(8), 8.0, "a quantity for a float")


IDEA, TYPE = "look at   the last column", "look at   the type of what is returned"


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (torch.zeros(3), ["the shape", "(2, 2)", "(3,)", IDEA]),
        (torch.zeros(2, 2, dtype=torch.float64), ["the dtype", "float32", "float64", "look at   the dtype of what"]),
        (
            torch.tensor([[1.0, 2.0], [3.0, 5.0]]),
            ["4.0 at [1, 1]", "1 of 4 elements are off; first at [1, 1]: 5.0", IDEA],
        ),
        (torch.tensor([[1.0, float("nan")], [3.0, 4.0]]), ["2.0 at [0, 1]", "nan"]),
        ([[1.0, 2.0], [3.0, 4.0]], ["a tensor", "list", TYPE]),
        (None, ["a tensor", "NoneType", TYPE]),
    ],
)
@pytest.mark.parametrize("judge", [check.equal, check.close])
def test_a_wrong_tensor_is_located_and_its_kind_judged_before_the_idea(
    judge: Any, got: object, words: list[str]
) -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    text = refused(judge, got, expected, "the product", look="the last column")
    assert text.startswith("the product")
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1 + 1e-6, "rounding or an epsilon"), (1.001, "the last column"), (float("inf"), "a quotient that is not finite")],
)
def test_the_size_of_a_difference_says_more_than_the_idea(factor: float, words: str) -> None:
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert words in refused(check.close, expected * factor, expected, "the product", look="the last column")


def test_tolerances_come_from_the_dtype_and_the_operations() -> None:
    eps = torch.finfo(torch.bfloat16).eps
    exact = torch.tensor([1.0, 100.0], dtype=torch.bfloat16)
    check.close(exact * (1 + eps), exact, "one rounding", operations=2)
    assert "may be off by 0.0078 × 100" in refused(check.close, exact * (1 + 4 * eps), exact, "four", operations=1)
    check.close(torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 1.0]), "infinities")
    refused(check.close, torch.tensor([float("inf"), 1.0]), torch.tensor([2.0, 1.0]), "an infinity for a number")
    refused(check.close, 1.1, 1.0, "a number", relative=0.05)
    check.close(1.04, 1.0, "a number", relative=0.05)
    refused(check.close, float("nan"), 1.0, "nan", relative=10)
    assert "1.00000002" in refused(check.close, 1 + 2e-8, 1.0, "not rounded to float32 on the way", relative=1e-9)


def test_bounds() -> None:
    check.at_least(3, 2, "enough")
    assert "at most 1.95 KiB" in refused(check.at_most, Bytes(3000), Bytes(2000), "the peak")
    assert "at least 2" in refused(check.at_least, 1, 2, "points")
    for nonsense in (float("nan"), None, True, "3", Yes()):
        refused(check.at_most, nonsense, 5.0, "nonsense")


def test_truth_must_be_the_bool() -> None:
    for nonsense in (1, "yes", Yes(), torch.tensor(True), None, False):
        refused(check.that, nonsense, "a fact")


def in_a_cell(source: str) -> dict[str, Any]:
    """Names that a notebook cell defines."""
    name = "/tmp/ipykernel_1/7.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def test_an_answer_that_raises_is_told_the_line_of_its_cell() -> None:
    broken = in_a_cell("def half(x):\n    y = x / 0\n    return y\n")["half"]
    text = refused(check.call, broken, 3)
    assert "half(3) raised an error" in text and "ZeroDivisionError" in text and "line 2 of half: y = x / 0" in text
    stub = in_a_cell("def half(x):\n    raise NotImplementedError\n")["half"]
    assert "half is not written yet" in refused(check.call, stub, 3)
    theirs = in_a_cell("import torch\ndef half(x):\n    return torch.ones(3).to_sparse().cummax(0)\n")["half"]
    assert "NotImplementedError: Could not run" in refused(check.call, theirs, 3), "PyTorch's own is no stub"
    leaving = in_a_cell("import sys\ndef half(x):\n    sys.exit(0)\n")["half"]
    assert "SystemExit" in refused(check.call, leaving, 3)
    assert check.call(in_a_cell("def half(x):\n    return x / 2\n")["half"], 3) == 1.5


def test_bad_input_must_be_refused() -> None:
    def picky(x: int) -> int:
        if x < 0:
            raise ValueError("below zero")
        return x

    def stub(x: int) -> int:
        raise NotImplementedError

    check.raises(ValueError, picky, -1)
    assert "it returned 1" in refused(check.raises, ValueError, picky, 1)
    assert "ValueError" in refused(check.raises, TypeError, picky, -1)
    assert "not written yet" in refused(check.raises, RuntimeError, stub, 1)


def test_what_a_function_may_use() -> None:
    source = "import torch.distributed as dist\ndef f(x):\n    import numpy.linalg\n    dist.all_reduce(x)\n"
    fn = in_a_cell(source)["f"]
    check.written_with(fn, forbidden=["dist.broadcast"])
    assert "no dist.all_reduce" in refused(check.written_with, fn, forbidden=["dist.all_reduce"])
    assert "no all_reduce" in refused(check.written_with, fn, forbidden=["all_reduce"])
    assert "no numpy" in refused(check.written_with, fn, forbidden=["numpy"])
    assert "the text of len cannot be read" in refused(check.written_with, len)
    exec("def timed(): pass", namespace := {})  # as %%time does
    assert "%%time" in refused(check.written_with, namespace["timed"])


@pytest.mark.parametrize(
    "body",
    [
        "import torch.distributed as td\n    td.all_reduce(x)",
        "from torch.distributed import all_reduce as add_up\n    add_up(x)",
        "from torch import distributed as td\n    td.all_reduce(x)",
        "getattr(dist, 'all_reduce')(x)",
        "theirs.all_reduce(x)",
        "g(x)",
    ],
)
def test_another_name_for_it_is_no_way_out(body):
    head = "import torch.distributed as dist\ntheirs, g = dist, dist.all_reduce\n@torch.no_grad()\n"
    fn = in_a_cell(f"import torch\n{head}def f(x):\n    {body}\n")["f"]
    assert "no dist.all_reduce" in refused(check.written_with, fn, forbidden=["dist.broadcast", "dist.all_reduce"])
    check.written_with(fn, forbidden=["dist.broadcast", "dist.isend", "x.all_reduce", "unknown.name"])


def test_the_store_through_which_ranks_found_each_other_is_no_way_either() -> None:
    source = "import torch.distributed as dist\ndef f(x):\n    dist.distributed_c10d._get_default_store().set('x', x)\n"
    assert "no _get_default_store" in refused(check.written_with, in_a_cell(source)["f"], forbidden=check.CHANNELS)


ORDERS = "from course_lib.pipeline.schedule.orders import ORDERS as table, zb_h2 as other\n"
MODULE = "import course_lib.pipeline.schedule.orders as orders\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (ORDERS, "other(x)"),
        (ORDERS, "table['x']"),
        ("import functools\n" + ORDERS + "half = functools.partial(other, 2)\n", "half(x)"),
        (ORDERS + "def helper(x):\n    return other(x)\n", "helper(x)"),
        (ORDERS + "class Helper:\n    @staticmethod\n    def go(x):\n        return other(x)\n", "Helper.go(x)"),
        (MODULE, "getattr(orders, 'zb_' + 'h2')(x)"),
        (MODULE, "vars(orders)[x](x)"),
        ("import operator\n" + MODULE, "operator.attrgetter('zb_' + 'h2')(orders)(x)"),
        ("import importlib\n", "importlib.import_module('course_lib' + '.pipeline')"),
    ],
)
def test_what_is_forbidden_is_known_by_what_it_is(head: str, body: str) -> None:
    fn = in_a_cell(f"{head}def f(x):\n    return {body}\n")["f"]
    assert "what f may use" in refused(check.written_with, fn, forbidden=["zb_h2", "ORDERS"])


def test_what_only_sounds_like_it_passes() -> None:
    head = "from course_lib.pipeline.schedule.orders import gpipe as mine\ndef beside(zb_h1):\n    return zb_h1\n"
    fn = in_a_cell(f"{head}def f(x):\n    return getattr(x, x.name), mine(x), beside(x), vars(x), x.eval()\n")["f"]
    check.written_with(fn, forbidden=["zb_h2", "ORDERS", "numpy"])


def test_a_variable_of_the_answers_own_may_have_any_name() -> None:
    head = "from course_lib.pipeline.schedule.orders import gpipe\n"
    check.written_with(
        in_a_cell("def f(gpipe):\n    ORDERS = [gpipe]\n    return ORDERS\n")["f"], forbidden=["gpipe", "ORDERS"]
    )
    for source in ("def f(x, g=gpipe):\n    gpipe = g\n    return gpipe(x)\n", "def f(x):\n    return gpipe(x)\n"):
        assert "no gpipe, under any name" in refused(
            check.written_with, in_a_cell(head + source)["f"], forbidden=["gpipe"]
        )


@pytest.mark.parametrize(
    "body",
    [
        "sys._getframe(1).f_locals",
        "getattr(x, 'f_' + 'back')",
        "inspect.stack()",
        "helper(x)",
        "pattern(x)",
        "[gc.get_objects() for _ in x]",
    ],
)
def test_nobody_looks_at_who_calls_it(body: str) -> None:
    source = "import gc, inspect, sys\ndef helper(x):\n    return x.f_back\nran = []\n"
    source += "def pattern(x):\n    match x:\n        case object(__closure__=cells):\n            return cells\n"
    method = f"class C:\n    def f(self, x):\n        return {body}\n"
    cell = in_a_cell(f"{source}def f(x):\n    ran.append(x)\n    return {body}\n{method}")
    for answer in (cell["f"], cell["C"]().f, lambda x: check.written_with(cell["f"])):
        assert "does not look at who calls it" in refused(check.call, answer, [1])
    assert cell["ran"] == [], "asked before it runs"


def test_ranks_and_what_they_send() -> None:
    def ring(tensor: torch.Tensor) -> int:
        me, p = dist.get_rank(), dist.get_world_size()
        request = dist.isend(tensor, (me + 1) % p)
        dist.recv(torch.empty_like(tensor), (me - 1) % p)
        assert request is not None
        request.wait()
        return me

    results, accounts = check.traffic(ring, torch.zeros(25), world_size=3)
    assert results == [0, 1, 2] and all(account.total_bytes == 100 for account in accounts)

    def deadlock(tensor: torch.Tensor) -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(tensor)

    assert "rank 0 waits in all_reduce" in refused(check.on_ranks, deadlock, torch.zeros(1), world_size=2)

    def stub(tensor: torch.Tensor) -> None:
        raise NotImplementedError

    assert "not written yet" in refused(check.traffic, stub, torch.zeros(1), world_size=2)


def test_bytes_held_at_the_peak() -> None:
    assert check.peak(lambda x: x + 1, torch.zeros(64, 64)) == 64 * 64 * 4


def hoards(x: torch.Tensor) -> list[torch.Tensor]:
    doubled = x * 2
    return [piece.clone() for piece in doubled] + [doubled]  # many small ones


def test_too_many_bytes_name_the_lines_that_made_most_of_them_on_ranks_too() -> None:
    here, there = check.peak(hoards, torch.ones(64, 64)), check.on_ranks(held_on_a_rank, world_size=1)[0]
    for held in (here, there + Bytes(1)):
        told = refused(check.at_most, held, Bytes(2000), "the peak")
        lines = [line.strip() for line in told.splitlines() if " by line " in line]
        assert all(line.startswith("16.00 KiB by line") for line in lines) and len(lines) == 2, told
        assert "doubled = x * 2" in told and "[piece.clone() for piece in doubled]" in told


def held_on_a_rank() -> check.HeldBytes:
    return check.peak(hoards, torch.ones(64, 64))


def test_lines_with_little_are_not_named_and_three_at_most() -> None:
    lines = {f"line {number}": Bytes(n) for number, n in enumerate((50, 30, 20, 19, 9))}
    assert [f"line {n}" in check.HeldBytes(128, lines).words for n in range(5)] == [True, True, True, False, False]
    assert check.HeldBytes(128, {"line 1": Bytes(9)}).words == "128 B"


def test_arguments_are_held_before_a_call_and_do_not_count_in_its_peak() -> None:
    x = torch.zeros(64, 64)
    assert check.peak(torch.add, x, x) == 64 * 64 * 4
    assert check.peak(torch.add, input=x, other=x) == 64 * 64 * 4


def test_a_line_that_goes_on_brings_along_the_line_that_it_continues() -> None:
    check.that(True, "a right sum on 8 ranks")
    check.at_most(3, 4, "… messages of the busiest rank")
    assert refused(check.at_most, 5, 4, "… bytes").startswith("a right sum on 8 ranks … bytes\n")
