"""What an answer calculates with: how many additions and multiplications, in which formats; or without tensors at all.

A sum that is meant to show what 16 bits can do must not slip into 32 on the way, and an elegant correction is none if
it takes ten times the work. So this *dispatch mode* looks at every operation of PyTorch that passes, counts those of
arithmetic by the numbers they make, and notes the formats that it sees and the operations that it cannot look into.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit.checks.failed import describe, fail

ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div"})
"""One floating-point operation for each number of the result."""

FREE = frozenset(
    {
        *("alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split", "squeeze"),
        *("t", "transpose", "unbind", "unsqueeze", "view", "lift_fresh", "clone", "copy", "stack", "cat"),
        *("empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "fill", "zero", "index_select"),
        *("abs", "neg", "where", "eq", "ge", "gt", "le", "lt", "ne"),
    }
)
"""Operations that move, compare or flip signs, and round nothing."""


class Arithmetic(TorchDispatchMode):
    """Watches the operations inside a `with` block.

        with Arithmetic() as seen:
            total = a * b + c
        seen.flops, seen.dtypes, seen.others

    Attributes:
        flops: additions, subtractions, multiplications and divisions of floating-point numbers, elementwise ones.
        dtypes: the floating-point formats of every tensor that went into an operation or came out.
        others: the remaining operations on floating-point numbers by name, with how often each came. Whoever wants to
            know the formats *inside* a sum must not find `sum` here: torch adds up 16-bit numbers in 32 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.dtypes: set[torch.dtype] = set()
        self.others: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made, given = list(_floats([result])), list(_floats([*args, *(kwargs or {}).values()]))
        name = func._schema.name.removeprefix("aten::").strip("_").removesuffix("_copy")
        self.dtypes.update(tensor.dtype for tensor in made + given)
        if name in ARITHMETIC and made:
            # add and sub take a factor, alpha, which is one multiplication more.
            each = 1 + ((kwargs or {}).get("alpha", 1) not in (1, -1))
            self.flops += each * made[0].numel()
        elif name not in FREE and (made or given):
            self.others[_plain(name)] += 1
        return result


def on_paper(fn: Callable, without: Collection[str]) -> Callable:
    """`fn`, for a check to call: an account that is arithmetic, and neither builds nor measures what it accounts for.

    While it runs, an operation of PyTorch fails the check, on the meta device too. And what the notebook calls by the
    names in `without`, its models and steps, is out of reach of `fn`, under those names and under others.
    """

    @functools.wraps(fn)
    def without_tensors(*args: Any, **kwargs: Any) -> Any:
        with _taken_away(fn, without), _NoTensors(describe(fn)) as mode:
            result = fn(*args, **kwargs)
        mode.complain()
        return result

    return without_tensors


class _NoTensors(TorchDispatchMode):
    """Refuses every operation, and remembers the first in case that the refusal is caught."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.tried = name, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tried = self.tried or func._schema.name.removeprefix("aten::")
        return self.complain()

    def complain(self) -> None:
        """Fail if there was an operation."""
        if self.tried:
            _not_on_paper(self.name, f"torch's {self.tried}")


class _OutOfReach:
    """Stands where something was that an account must not use."""

    def __init__(self, account: str, name: str) -> None:
        self.__dict__.update(account=account, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _not_on_paper(self.__dict__["account"], self.__dict__["name"])

    def __getattr__(self, part: str) -> Any:
        _not_on_paper(self.__dict__["account"], f"{self.__dict__['name']}.{part}")


def _not_on_paper(account: str, came: str) -> NoReturn:
    look = "the rules: numbers from the arguments, without a model, a tensor or a measurement"
    fail(f"{account} is an account on paper", expected="arithmetic alone", came=came, look=look)


@contextmanager
def _taken_away(fn: Callable, without: Collection[str]) -> Iterator[None]:
    """Put some of the notebook's things out of reach, under all names that stand for them."""
    names = getattr(fn, "__globals__", {})
    things = [names[name] for name in without if name in names]
    away = {name: value for name, value in names.items() if any(value is thing for thing in things)}
    names.update({name: _OutOfReach(describe(fn), name) for name in away})
    try:
        yield
    finally:
        names.update(away)


def _plain(name: str) -> str:
    """The name that a user knows the operation by."""
    return "item" if name == "local_scalar_dense" else name


def _floats(values: Iterable[Any]) -> Iterator[Tensor]:
    """The floating-point tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)
