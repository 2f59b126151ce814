"""Refusals of checks, and answers as a notebook's cell would define them."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest

from course_kit.checks import CheckFailed


def refused(check_function: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """The text of the refusal; it must come."""
    with pytest.raises(CheckFailed) as caught:
        check_function(*args, **kwargs)
    return str(caught.value)


def in_a_cell(source: str) -> dict[str, Any]:
    """Names that a notebook cell defines."""
    name = "/tmp/ipykernel_1/7.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace
