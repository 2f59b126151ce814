"""The checker that verifies the tensor shapes and dtypes in `course_lib`'s signatures while the tests run.

Only hints that jaxtyping can decide are executed: plain types are pyright's business, and a library that explains a
wrong option by a `ValueError` must be allowed to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def speaks_of_shapes(hint: object) -> bool:
    """Whether a hint is, or contains, something like `Float[Tensor, "batch seq"]`."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(speaks_of_shapes, get_args(hint)))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which from now on refuses tensors of another shape or dtype than its signature says."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if speaks_of_shapes(hint)}
    return beartype(function)
