"""Checks of labs: what holds passes, what does not is explained, and no answer defines its own equality."""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit.accounts import ModelledBytes
from course_kit.checks import check
from course_kit.checks.check import within
from course_kit.units import Bytes, Count, Flops, Quantity
from tests.checks.conftest import in_a_cell, refused

NAN, INF = float("nan"), float("inf")


def agreeable(name: str, *bases: type, **attributes: Any) -> Any:
    """A class whose objects are equal to everything."""
    says = {"__eq__": lambda *_: True, "__ne__": lambda *_: False, "__hash__": lambda _: 0}
    return type(name, bases, says | attributes)


Yes, MyBytes = agreeable("Yes"), agreeable("MyBytes", ModelledBytes)
AnyNumber = agreeable("AnyNumber", Quantity, int, units=Count.units, auto_units=Count.auto_units)


class YesTensor(torch.Tensor):
    """A tensor whose comparisons always hold."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.tensor(False)


class ChecksMeanwhile:
    """While it is compared, another thread makes a check of its own."""

    def __ne__(self, other: object) -> bool:
        elsewhere = threading.Thread(target=check.that, args=(True, "in another thread"))
        elsewhere.start()
        elsewhere.join()
        return False


def disguised() -> torch.Tensor:
    """Zeros that say of themselves that they are ones."""
    zeros, ones = torch.zeros(2), torch.ones(2)
    zeros.detach = lambda: ones  # type: ignore[method-assign]
    return zeros


EPS = torch.finfo(torch.bfloat16).eps
EXACT = torch.tensor([1.0, 100.0], dtype=torch.bfloat16)
INFINITIES = torch.tensor([INF, 1.0])


def test_what_holds_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    check.equal([1, 2.0, "x"], [1, 2.0, "x"], "a list")
    check.equal(torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), "a tensor with NaN")
    check.equal({"a": 1}, {"a": 1}, "a dict")
    check.equal(2, 2.0, "an int for a float")
    check.equal(Bytes(8), 8, "a quantity for an int")
    check.equal(ModelledBytes(5), Bytes(5), "modelled bytes")
    check.equal(Bytes(5), ModelledBytes(5), "bytes")
    check.close(Flops(8), 8.0, "a quantity for a float")
    check.close(0.1 + 0.2, 0.3, "a sum", operations=2)
    check.close(EXACT * (1 + EPS), EXACT, "one rounding", operations=2)
    check.close(INFINITIES, INFINITIES.clone(), "infinities")
    check.close(1.04, 1.0, "a number", relative=0.05)
    check.at_most(Bytes(10), Bytes(10), "at most")
    check.at_least(3, 2, "at least")
    check.that(True, "a fact")
    check.equal([ChecksMeanwhile()], [ChecksMeanwhile()], "a check inside another one")
    said = "a list, a tensor with NaN, a dict, an int for a float, a quantity for an int, modelled bytes, bytes, "
    said += "a quantity for a float, a sum, one rounding, infinities, a number, at most, at least, a fact, "
    said += "in another thread, a check inside another one"
    assert capsys.readouterr().out.splitlines() == [f"✓ {words}" for words in said.split(", ")]


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
        (torch.tensor([[1.0, NAN], [3.0, 4.0]]), ["2.0 at [0, 1]", "nan"]),
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


def off_by(factor: float) -> None:
    """Judge a product that is off by a factor."""
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    check.close(expected * factor, expected, "the product", look="the last column")


def half(body: str) -> Any:
    """Call an answer `half(3)` from a cell."""
    return check.call(in_a_cell(f"import sys, torch\ndef half(x):\n    {body}\n")["half"], 3)


def picky(x: int) -> int:
    if x < 0:
        raise ValueError("below zero")
    return x


def stub(*_: Any) -> None:
    raise NotImplementedError


def forever() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # as an answer might swallow everything
            continue


def deadlock(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(tensor)


ONES, RELATIVE = torch.ones(2), functools.partial(check.close, what="a number", relative=0.05)
REFUSED: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = [  # words of the refusal, the check, what it judges
    ("a number", check.at_most, (MyBytes(9), Bytes(5), "bytes of its own")),
    ("MyBytes", check.equal, (MyBytes(9), Bytes(5), "equal bytes of its own")),
    ("expected", check.equal, (Yes(), 3, "types come before values")),
    ("expected", check.equal, (Yes(), "x", "a text")),
    ("expected", check.equal, ([Yes()], [3], "in a list")),
    ("expected", check.equal, ({"a": Yes()}, {"a": 3}, "in a dict")),
    *[("expected", check.equal, (got, 1, "no int")) for got in (True, 1.0, torch.tensor(1))],
    ("expected", check.equal, (1, True, "no bool")),
    ("expected", check.equal, (YesTensor([1.0]), torch.tensor([2.0]), "a tensor of its own kind")),
    ("expected", check.equal, (Flops(3), Bytes(3), "another unit")),
    ("expected", check.equal, (disguised(), ONES, "a disguised tensor")),
    ("AnyNumber", check.equal, (AnyNumber(0), 12345, "a number of its own")),
    ("expected", check.close, (disguised(), ONES, "a disguised tensor")),
    ("expected", check.close, (INFINITIES, torch.tensor([2.0, 1.0]), "an infinity for a number")),
    ("may be off by 0.0078 × 100", check.close, (EXACT * (1 + 4 * EPS), EXACT, "four roundings")),
    ("rounding or an epsilon", off_by, (1 + 1e-6,)),
    ("the last column", off_by, (1.001,)),
    ("a quotient that is not finite", off_by, (INF,)),
    ("1.1", RELATIVE, (1.1, 1.0)),
    ("nan", RELATIVE, (NAN, 1.0)),
    ("1.00000002", functools.partial(check.close, relative=1e-9), (1 + 2e-8, 1.0, "not rounded to float32")),
    ("at most 1.95 KiB", check.at_most, (Bytes(3000), Bytes(2000), "the peak")),
    ("at least 2", check.at_least, (1, 2, "points")),
    *[("nonsense", check.at_most, (bad, 5.0, "nonsense")) for bad in (NAN, None, True, "3", Yes())],
    *[("a fact", check.that, (bad, "a fact")) for bad in (1, "yes", Yes(), torch.tensor(True), None, False)],
    ("half(3) raised an error", half, ("return x / 0",)),
    ("ZeroDivisionError", half, ("return x / 0",)),
    ("line 3 of half: y = x / 0", half, ("y = x / 0\n    return y",)),
    ("half is not written yet", half, ("raise NotImplementedError",)),
    ("NotImplementedError: Could not run", half, ("return torch.ones(3).to_sparse().cummax(0)",)),  # PyTorch's own
    ("SystemExit", half, ("sys.exit(0)",)),
    ("it returned 1", check.raises, (ValueError, picky, 1)),
    ("ValueError", check.raises, (TypeError, picky, -1)),
    ("not written yet", check.raises, (RuntimeError, stub, 1)),
    ("forever()", within, (0.1, forever)),
    ("an answer within 0.1 s", within, (0.1, forever)),
    ("stopped after 0.1 s", within, (0.1, forever)),
    ("the loop", functools.partial(within, look="the loop"), (0.1, forever)),
    ("ZeroDivisionError", within, (30, lambda: 1 / 0)),
    ("not written yet", within, (30, stub)),
    ("rank 0 waits in all_reduce", check.on_ranks, (deadlock, ONES)),
    ("not written yet", check.traffic, (stub, ONES)),
]


@pytest.mark.parametrize(("words", "judge", "given"), REFUSED)
def test_what_does_not_hold_is_refused_and_told(
    words: str, judge: Callable[..., object], given: tuple[Any, ...]
) -> None:
    assert words in refused(judge, *given)


def test_a_quick_answer_is_returned_and_no_timer_stays() -> None:
    before = set(threading.enumerate())
    assert within(30, lambda a, b: a + b, 1, b=2) == 3
    for timer in set(threading.enumerate()) - before:
        timer.join(20)  # less than its limit: it has been told to end
    assert not set(threading.enumerate()) - before


def test_what_is_right_is_returned_or_left_in_peace() -> None:
    assert half("return x / 2") == 1.5
    check.raises(ValueError, picky, -1)


DIST = "import torch, torch.distributed as dist\ntheirs, g = dist, dist.all_reduce\n@torch.no_grad()\n"
ORDERS = "from course_lib.pipeline.schedule.orders import ORDERS as table, zb_h2 as other, gpipe\n"
MODULE = "import course_lib.pipeline.schedule.orders as orders\n"
REDUCES, HIDDEN = ("dist.broadcast", "dist.all_reduce"), ("zb_h2", "ORDERS")
FORBIDDEN: list[tuple[str, str, tuple[str, ...], str]] = [
    (DIST, "dist.all_reduce(x)", ("dist.all_reduce",), "no dist.all_reduce"),
    (DIST, "dist.all_reduce(x)", ("all_reduce",), "no all_reduce"),
    (DIST, "import numpy.linalg", ("numpy",), "no numpy"),
    (DIST, "dist.distributed_c10d._get_default_store().set('x', x)", check.CHANNELS, "no _get_default_store"),
    (DIST, "import torch.distributed as td\n    td.all_reduce(x)", REDUCES, "no dist.all_reduce"),
    (DIST, "from torch.distributed import all_reduce as add_up\n    add_up(x)", REDUCES, "no dist.all_reduce"),
    (DIST, "from torch import distributed as td\n    td.all_reduce(x)", REDUCES, "no dist.all_reduce"),
    (DIST, "getattr(dist, 'all_reduce')(x)", REDUCES, "no dist.all_reduce"),
    (DIST, "theirs.all_reduce(x)", REDUCES, "no dist.all_reduce"),
    (DIST, "g(x)", REDUCES, "no dist.all_reduce"),
    (ORDERS, "return other(x)", HIDDEN, "what f may use"),
    (ORDERS, "return table['x']", HIDDEN, "what f may use"),
    ("import functools\n" + ORDERS + "half = functools.partial(other, 2)\n", "half(x)", HIDDEN, "what f may use"),
    (ORDERS + "def helper(x):\n    return other(x)\n", "helper(x)", HIDDEN, "what f may use"),
    (ORDERS + "class Of:\n    @staticmethod\n    def go(x):\n        other(x)\n", "Of.go(x)", HIDDEN, "what f may use"),
    (MODULE, "getattr(orders, 'zb_' + 'h2')(x)", HIDDEN, "what f may use"),
    (MODULE, "vars(orders)[x](x)", HIDDEN, "what f may use"),
    ("import operator\n" + MODULE, "operator.attrgetter('zb_' + 'h2')(orders)(x)", HIDDEN, "what f may use"),
    ("import importlib\n", "importlib.import_module('course_lib' + '.pipeline')", HIDDEN, "what f may use"),
    (ORDERS, "gpipe(x)", ("gpipe",), "no gpipe, under any name"),
    (
        ORDERS + "def g(x, g=gpipe):\n    gpipe = g\n    return gpipe(x)\n",
        "g(x)",
        ("gpipe",),
        "no gpipe, under any name",
    ),
]


@pytest.mark.parametrize(("head", "body", "forbidden", "words"), FORBIDDEN)
def test_what_is_forbidden_is_found_under_any_name(
    head: str, body: str, forbidden: tuple[str, ...], words: str
) -> None:
    fn = in_a_cell(f"{head}def f(x):\n    {body}\n")["f"]
    assert words in refused(check.written_with, fn, forbidden=list(forbidden))
    if head == DIST:
        check.written_with(fn, forbidden=["dist.broadcast", "dist.isend", "x.all_reduce", "unknown.name"])


def test_a_function_without_a_text_cannot_be_judged() -> None:
    assert "the text of len cannot be read" in refused(check.written_with, len)
    exec("def timed(): pass", namespace := {})  # as %%time does
    assert "%%time" in refused(check.written_with, namespace["timed"])


def test_what_only_sounds_like_it_passes() -> None:
    head = "from course_lib.pipeline.schedule.orders import gpipe as mine\ndef beside(zb_h1):\n    return zb_h1\n"
    fn = in_a_cell(f"{head}def f(x):\n    return getattr(x, x.name), mine(x), beside(x), vars(x), x.eval()\n")["f"]
    check.written_with(fn, forbidden=["zb_h2", "ORDERS", "numpy"])
    own = in_a_cell("def f(gpipe):\n    ORDERS = [gpipe]\n    return ORDERS\n")["f"]
    check.written_with(own, forbidden=["gpipe", "ORDERS"])


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


def hoards(x: torch.Tensor) -> list[torch.Tensor]:
    doubled = x * 2
    return [piece.clone() for piece in doubled] + [doubled]  # many small ones


def held_on_a_rank() -> check.HeldBytes:
    return check.peak(hoards, torch.ones(64, 64))


def test_too_many_bytes_name_the_lines_that_made_most_of_them_on_ranks_too() -> None:
    here, there = held_on_a_rank(), check.on_ranks(held_on_a_rank, world_size=1)[0]
    for held in (here, there + Bytes(1)):
        told = refused(check.at_most, held, Bytes(2000), "the peak")
        lines = [line.strip() for line in told.splitlines() if " by line " in line]
        assert all(line.startswith("16.00 KiB by line") for line in lines) and len(lines) == 2, told
        assert "doubled = x * 2" in told and "[piece.clone() for piece in doubled]" in told


def test_lines_with_little_are_not_named_and_three_at_most() -> None:
    lines = {f"line {number}": Bytes(n) for number, n in enumerate((50, 30, 20, 19, 9))}
    assert [f"line {n}" in check.HeldBytes(128, lines).words for n in range(5)] == [True, True, True, False, False]
    assert check.HeldBytes(128, {"line 1": Bytes(9)}).words == "128 B"


def test_arguments_are_held_before_a_call_and_do_not_count_in_its_peak() -> None:
    x = torch.zeros(64, 64)
    assert check.peak(lambda x: x + 1, x) == 64 * 64 * 4
    assert check.peak(torch.add, x, x) == 64 * 64 * 4
    assert check.peak(torch.add, input=x, other=x) == 64 * 64 * 4


def test_a_line_that_goes_on_brings_along_the_line_that_it_continues() -> None:
    check.that(True, "a right sum on 8 ranks")
    check.at_most(3, 4, "… messages of the busiest rank")
    assert refused(check.at_most, 5, 4, "… bytes").startswith("a right sum on 8 ranks … bytes\n")
