"""The checker that verifies the tensor shapes and dtypes in the library's signatures while the tests run.

Only hints that jaxtyping can decide are executed: plain types are pyright's business, and a library that explains a
wrong option by a `ValueError` must be allowed to do so. A function without such hints stays as it is: jaxtyping would
bind its arguments at every call, only to check none of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray

_jaxtyped = jaxtyping.jaxtyped


def speaks_of_shapes(hint: object) -> bool:
    """Whether a hint is, or contains, something like `Float[Tensor, "batch seq"]`."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(speaks_of_shapes, get_args(hint)))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which from now on refuses tensors of another shape or dtype than its signature says."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if speaks_of_shapes(hint)}
    return beartype(function)


def where_shapes_are(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """Stand in for `jaxtyping.jaxtyped`, with which jaxtyping's import hook decorates every function and class."""
    return functools.partial(_decorated, typechecker=typechecker)


def _decorated(made: Any, typechecker: Callable[..., Any]) -> Any:
    function = made.__init__ if inspect.isclass(made) else made
    return _jaxtyped(made, typechecker=typechecker) if any(map(speaks_of_shapes, _hints(function))) else made


def _hints(function: Any) -> list[object]:
    """Hints of a signature that jaxtyping could check: those that can be evaluated where the function is defined."""
    found = []
    for hint in getattr(function, "__annotations__", {}).values():
        try:
            found.append(eval(hint, function.__globals__) if isinstance(hint, str) else hint)
        except Exception:  # a name that only pyright imports
            continue
    return found


jaxtyping.jaxtyped = where_shapes_are  # type: ignore[assignment]
