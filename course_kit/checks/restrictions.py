"""Restrictions of an answer: operations in few formats, no tensors at all, or no mention of some names in its text.

A sum that is meant to show the reach of 16 bits must not slip into 32 on the way, and an elegant correction is none if
it takes ten times the work. So a *dispatch mode*, `Arithmetic`, looks at every operation of PyTorch that passes, counts
additions and multiplications by the numbers that they make, and notes their formats and all other operations. An
account on paper may use none (`without_torch`), and `written_with` reads which names stand in an answer's own text.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
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
"""Operations that move numbers, compare them or flip signs, and round nothing."""


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
            # add and sub take a factor, alpha, for one multiplication more
            each = 1 + ((kwargs or {}).get("alpha", 1) not in (1, -1))
            self.flops += each * made[0].numel()
        elif name not in FREE and (made or given):
            self.others["item" if name == "local_scalar_dense" else name] += 1  # as a user knows it
        return result


def without_torch(fn: Callable, without: Collection[str]) -> Callable:
    """Return `fn` for a check to call as an account on paper, which neither builds nor measures its subject.

    While `fn` runs, an operation of PyTorch fails the check, on the meta device too. And the notebook's things with
    the names in `without`, its models and steps, are out of reach of `fn`, under those names and under others.
    """

    @functools.wraps(fn)
    def without_tensors(*args: Any, **kwargs: Any) -> Any:
        with _taken_away(fn, without), _NoTensors(describe(fn)) as mode:
            result = fn(*args, **kwargs)
        mode.complain()
        return result

    return without_tensors


class _NoTensors(TorchDispatchMode):
    """Refuses every operation, and remembers the first: the answer may catch the refusal."""

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
    """Stands in for a thing that an account must not use."""

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


def _floats(values: Iterable[Any]) -> Iterator[Tensor]:
    """The floating-point tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)


def written_with(
    fn: Callable, *, allowed: Collection[str] | None = None, forbidden: Sequence[str] = (), look: str = ""
) -> None:
    """Check that a function's own text imports only `allowed` and mentions none of `forbidden`, by any name.

    Only the text of this one function is read: neither the functions that it calls, nor names that are put together at
    run time (`vars(dist)["all_" + "reduce"]`), nor a copy of the forbidden text is found out. The check reminds an
    honest student of the contract and stops nobody else: a benefit that counts must be measured.

    Args:
        fn: a function or class of a cell.
        allowed: names of packages, or None for all.
        forbidden: dotted names or parts of them, such as "checkpoint" or "dist.all_reduce".
        look: where to look when the check fails.
    """
    try:
        text = AnswerText(fn)
    except (OSError, TypeError, SyntaxError):
        wanted, magic = "a function or class written in the cell above", "a magic such as %%time above it: take it away"
        return fail(f"the text of {describe(fn)} cannot be read", expected=wanted, look=look or magic)
    for name in text.imports:
        if allowed is not None and name.split(".")[0] not in allowed:
            fail(f"what {fn.__name__} imports", expected=f"only {', '.join(sorted(allowed))}", came=name, look=look)
    for name in forbidden:
        if text.mentions(name):
            fail(f"what {fn.__name__} may use", expected=f"no {name}: that is what you build here", look=look)
    print(f"✓ {fn.__name__} uses what it may")
    return None


def called_by(fn: Any, seen: dict[str, Any] | None = None) -> list[Any]:
    """A function or class, and those of its notebook that it calls by name, for `written_with` to read them, too."""
    seen = {} if seen is None else seen
    seen[fn.__name__] = fn
    for part in vars(fn).values() if isinstance(fn, type) else [fn]:
        for name in _names_in(part.__code__) if isinstance(part, FunctionType) else ():
            other = part.__globals__.get(name)
            own = isinstance(other, type | FunctionType) and other.__module__ == fn.__module__
            if own and name not in seen:
                called_by(other, seen)
    return list(seen.values())


def _names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes that a function's code mentions, inner functions included."""
    return set(code.co_names).union(*(_names_in(each) for each in code.co_consts if isinstance(each, CodeType)))


class AnswerText:
    """The text of one function or class, and the meaning of its names.

    Attributes:
        imports: the modules that the text imports, and `module.name` for each name that it takes from one.

    Raises:
        OSError, TypeError, SyntaxError: the function has no text.
    """

    def __init__(self, fn: Callable) -> None:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(fn)))))
        plain = [node for node in nodes if isinstance(node, ast.Import)]
        taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        self.imports = [alias.name for node in plain for alias in node.names]
        self.imports += [f"{node.module or ''}.{alias.name}" for node in taken for alias in node.names]
        self._names = list(filter(None, map(_dotted, nodes)))
        inner = inspect.unwrap(fn)
        self._scope = dict(getattr(inner, "__globals__", None) or vars(sys.modules[fn.__module__]))
        for node in (*plain, *taken):
            with contextlib.suppress(Exception):  # what cannot be imported cannot be used either
                exec(ast.unparse(node), self._scope)

    def mentions(self, name: str) -> bool:
        """Whether a dotted name, or a part of one, stands in the text, or another name for the same thing."""
        thing = self._meaning(name)
        return any(
            f".{name}." in f".{text}." or (thing is not None and self._meaning(text) is thing)
            for text in (*self._names, *self.imports)
        )

    def _meaning(self, name: str) -> Any:
        """The object behind a dotted name, in the notebook or by the function's own import; None: unknown."""
        head, *rest = name.split(".")
        thing = self._scope.get(head)
        for part in rest:
            thing = inspect.getattr_static(thing, part, None)  # a property would run the answer's code
        return thing


def _dotted(node: ast.AST) -> str:
    """`a`, `a.b` or `getattr(a, "b")` as a dotted name; "" for anything else."""
    match node:
        case ast.Name() | ast.Attribute():
            return ast.unparse(node)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            return f"{ast.unparse(owner)}.{name}"
    return ""
