"""What a call leaves changed is seen and said; what it leaves alone, or may change, is not."""

import copy
import functools
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit.checks import CheckFailed, check
from course_kit.checks.side_effects import LARGE_BYTES, Snapshot, named
from tests.checks.conftest import refused


@dataclass
class State:
    """A thing with fields, as labs have them."""

    scale: float
    kept: Tensor


def changes(change: Callable[[Any], object], thing: Any, **kwargs: Any) -> list[str]:
    """What a snapshot says of `x`, which is changed meanwhile."""
    snapshot = Snapshot({"x": thing}, **kwargs)
    change(thing)
    return snapshot.changes()


def trained() -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A layer with gradients, and an optimizer that has made a step."""
    layer = nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    return layer, optimizer


LAYER, LEAF = functools.partial(nn.Linear, 2, 2), functools.partial(torch.zeros, 2, requires_grad=True)
ZEROS, LARGE = functools.partial(torch.zeros, 3), functools.partial(torch.zeros, LARGE_BYTES // 4 + 1000)
VALUES = "`x` has other values"
CHANGES: list[tuple[Callable[[], Any], Callable[[Any], object], str]] = [
    (lambda: [(0, 1), (2, 3)], lambda x: x.pop(), "`x` had 2 entries, now 1 entry"),
    (lambda: {"a": 1}, lambda x: x.clear(), "`x` had 1 entry, now 0 entries"),
    (lambda: [3, 1, 2], lambda x: x.sort(), "`x`: its entries stand in another order"),
    (lambda: {"a": 1}, lambda x: x.update(a=2), "`x`: x['a'] was 1, now 2"),
    (lambda: [1, True], lambda x: x.__setitem__(1, 1), "`x`: x[1] was True, now 1"),
    (lambda: {"a": 1, "b": 2}, lambda x: x.update(c=x.pop("a")), "`x`: x['a'] is gone"),
    (lambda: [torch.ones(2)], lambda x: x.__setitem__(0, [1]), "`x`: x[0] is another object"),
    (lambda: {1, 2}, lambda x: x.discard(2), "`x` had 2 entries, now 1 entry"),
    (lambda: {"a": [[1], [2]]}, lambda x: x["a"][1].append(3), "`x['a'][1]` had 1 entry, now 2 entries"),
    (lambda: State(1.0, torch.ones(2)), lambda x: setattr(x, "scale", 2.0), "x.scale was 1.0, now 2.0"),
    (lambda: State(1.0, torch.ones(2)), lambda x: x.kept.zero_(), "`x.kept` has other values"),
    (lambda: SimpleNamespace(n=1), lambda x: setattr(x, "n", 2), "x.n was 1, now 2"),
    (ZEROS, lambda x: x.__setitem__(2, 1), VALUES),
    (ZEROS, lambda x: x.numpy().fill(1), VALUES),
    (ZEROS, lambda x: x[:1].neg_(), VALUES),  # minus zero
    (lambda: torch.zeros(3, 5).T, lambda x: x.__setitem__((4, 2), 1), VALUES),
    (lambda: torch.zeros(3).bfloat16(), lambda x: x.fill_(1), VALUES),
    (LARGE, lambda x: x[12_345].add_(1), VALUES),  # it is looked at in places, and by its version
    (LARGE, lambda x: x.data.fill_(1), VALUES),
    (ZEROS, lambda x: x.resize_(2), "`x` was float32[3], now float32[2]"),
    (ZEROS, lambda x: x.requires_grad_(), "`x.requires_grad` was False, now True"),
    (LEAF, lambda x: x.sum().backward(), "`x.grad` was none, now flo"),
    (LEAF, lambda x: x.register_hook(lambda g: g), "`x` had 0 hooks, now 1 hook"),
    (LAYER, lambda x: x.eval(), "`x` was in training mode, now in eval mode"),
    (lambda: nn.Sequential(nn.Dropout()), lambda x: x[0].eval(), "`x.0` was in training mode, now in eval mode"),
    (LAYER, lambda x: x.register_forward_hook(lambda *_: None), "`x` had 0 hooks, now 1 hook"),
    (LAYER, lambda x: setattr(x, "forward", x.forward), "`x` had 2 entries, now 3"),
    (LAYER, lambda x: x.weight.data.zero_(), "`x.weight` has other values"),
    (LAYER, lambda x: setattr(x, "weight", nn.Parameter(torch.ones(2, 2))), "x.weight is another object"),
    (LAYER, lambda x: x.requires_grad_(False), "`x.weight.requires_grad` was True, now Fal"),
    (lambda: nn.BatchNorm1d(2), lambda x: x(torch.ones(3, 2)), "`x.running_mean` has other values"),
    (lambda: trained()[0], lambda x: x.weight.grad.mul_(2), "`x.weight.grad` has other values"),
    (lambda: trained()[0], lambda x: x.zero_grad(), "`x.weight.grad` was float32[2, 2], now none"),
    (lambda: trained()[1], lambda x: x.param_groups[0].update(lr=1.0), "x.param_groups[0]['lr'] was 0.1, now"),
    (
        lambda: trained()[1],
        lambda x: next(iter(x.state.values()))["momentum_buffer"].zero_(),
        "`x.state[key 0]['momentum_buffer']` has other values",
    ),
    (torch.Generator, lambda x: torch.rand(1, generator=x), "`x` is another one: random numbers were drawn"),
    (lambda: numpy.zeros(3), lambda x: x.fill(1), VALUES),
    (type(None), lambda x: torch.rand(1), "torch's random state is another one"),
    (type(None), lambda x: random.random(), "Python's random state is another one"),
    (type(None), lambda x: numpy.random.rand(), "NumPy's random state is another one"),
]


READS: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [  # or puts back
    (lambda: [[2], (1, 2)], copy.deepcopy),
    (lambda: [3, 1, 2], sorted),
    (ZEROS, lambda x: x + 1),
    (ZEROS, lambda x: x.view(-1)[1:]),
    (lambda: trained()[0], lambda x: x(torch.ones(2))),
    (lambda: torch.ones(3), lambda x: x.mul_(2).div_(2)),
    (LAYER, lambda x: x.eval().train()),
    (lambda: [2, 1], lambda x: x.append(x.pop())),
    (type(None), lambda x: torch.rand(3, generator=torch.Generator())),
    (LARGE, lambda x: x.sum()),
]


@pytest.mark.parametrize(("make", "change", "words"), [*CHANGES, *((make, read, "") for make, read in READS)])
def test_a_change_is_seen_and_said_and_what_only_reads_is_not_blamed(
    make: Callable[[], Any], change: Callable[[Any], object], words: str
) -> None:
    told = changes(change, make())
    assert told and words in told[0] if words else told == []
    assert changes(lambda x: None, make()) == []


def test_what_the_contract_allows_is_not_looked_at() -> None:
    layer, optimizer = trained()

    def step(x: Any) -> None:
        layer(torch.rand(2)).sum().backward()
        optimizer.step()

    told = changes(step, [layer, optimizer])
    assert any("random" in line for line in told) and any("grad" in line for line in told)
    assert any("momentum_buffer" in line for line in told)
    assert changes(step, [layer, optimizer], may_change=["random", *layer.parameters(), optimizer]) == []
    assert changes(step, layer, may_change=("random", "grad", "values")) == []
    assert changes(lambda x: torch.rand(1), None, may_change="random") == []
    assert changes(lambda x: layer.eval(), layer, may_change=[*layer.parameters()]) != []
    with pytest.raises(ValueError, match="'gard'.*none of entries"):
        Snapshot({}, "gard")


class Operations(TorchDispatchMode):
    """Counts what is run on tensors."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_looking_runs_no_operation_and_holds_nothing() -> None:
    layer, optimizer = trained()
    with Operations() as seen:
        check.call(lambda *_: None, layer, optimizer, torch.default_generator)
    assert seen.count == 0

    def lets_go(x: list[Tensor]) -> bool:
        given = weakref.ref(x[0])
        x.clear()
        return given() is None

    assert check.call(lets_go, [torch.zeros(1000)], may_change="entries")


def total(plan: list[int], *more: int, **rest: Any) -> int:
    return sum(plan.pop() for _ in range(len(plan)))


def picky(plan: list[int]) -> None:
    if plan.pop() < 0:
        raise ValueError("below zero")


def test_a_call_that_changes_something_fails_and_says_what_and_where_to_look() -> None:
    text = refused(check.call, total, [1, 2, 3], look="the contract")
    assert "what total was given" in text and "`plan` had 3 entries, now 0 entries" in text
    assert text.endswith("look at   the contract")
    assert check.call(total, [1, 2, 3], may_change="entries") == 6
    assert "`plan`" in refused(check.peak, total, [1]) and "`plan`" in refused(check.peak, total, plan=[1])
    assert list(named(total, ([1], 2, 3), {"k": 4})) == ["plan", "more", "rest"]
    assert named(total, (), {"k": 4}) == {"k": 4}  # it cannot be called so: nobody knows the names
    assert "`plan` had 1 entry" in refused(check.raises, ValueError, picky, [-1]), "a refusal comes before any change"
    text = refused(check.call, lambda x: x.eval() and None, nn.Sequential(*map(nn.Dropout, [0.1] * 5)))
    assert text.count("eval mode") == 3 and "and 3 more" in text


def test_settings_and_the_same_seed_once_more_are_seen_and_the_dice_fall_on_as_if_nobody_had_looked() -> None:
    torch.manual_seed(0)
    assert "torch's random state" in refused(check.call, lambda: torch.manual_seed(0) and None)
    assert "Python's random state" in refused(check.call, random.seed, 0)
    with torch.enable_grad():  # puts it back
        told = refused(check.call, lambda: torch.set_grad_enabled(False) and None)
    assert "`torch.is_grad_enabled()` was True, now False" in told
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    check.call(lambda: None)
    assert torch.equal(torch.rand(1), expected)


def test_a_block_looks_after_what_a_call_is_not_given() -> None:
    layer, _ = trained()
    kept = check.unchanged("after the pass", {"model": layer}, may_change="grad")
    with pytest.raises(CheckFailed, match=r"(?s)after the pass.*`model` was in training mode"), kept:
        check.call(lambda: layer.eval()(torch.ones(2)).sum().backward())


def test_ranks_look_for_themselves_and_pass_on_what_a_check_said_there() -> None:
    def writes(x: Tensor) -> None:
        x += 1

    assert "what writes was given" in refused(check.on_ranks, writes, torch.ones(3), world_size=2)
    assert "`x` has other values" in refused(check.traffic, writes, torch.ones(3), world_size=2)
    assert check.on_ranks(writes, torch.ones(3), world_size=2, may_change="values") == [None, None]

    def inside(seed: int) -> Tensor:
        def switches_on(y: Tensor) -> None:
            y.requires_grad_()

        drawn = torch.rand(1)  # of the lab's own function
        if seed:
            check.call(switches_on, drawn)
        return drawn

    assert len(check.on_ranks(inside, 0, world_size=2)) == 2
    text = refused(check.on_ranks, inside, 1, world_size=2)
    assert text.startswith("what switches_on was given") and "`y.requires_grad` was False, now True" in text

    def wrong(x: Tensor) -> None:
        check.call(lambda: 1 / 0)

    text = refused(check.on_ranks, wrong, torch.ones(1), world_size=2)
    assert "wrong failed on 2 ranks" in text and "ZeroDivisionError" in text
