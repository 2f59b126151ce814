"""Refusals of checks, and answers as a notebook's cell would define them."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest

from course_kit.checks import CheckFailed

Told = tuple[Callable[[], object], str]
"""A call that a check must refuse, and words of the refusal."""


def refused(check_function: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """The text of the refusal; it must come."""
    with pytest.raises(CheckFailed) as caught:
        check_function(*args, **kwargs)
    return str(caught.value)


def assert_refused(told: Told) -> None:
    """The call is refused with these words; lines of the words stand in the refusal in any order."""
    call, words = told
    text = refused(call)
    assert [line for line in words.splitlines() if line not in text] == [], text


def in_a_cell(source: str) -> dict[str, Any]:
    """Names that a notebook cell defines."""
    name = "/tmp/ipykernel_1/7.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace
