"""Functions that look as if a notebook had defined them, for tests that run in a plain pytest process."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

_numbers = itertools.count(1)
_IMPORTS = "import os, sys, time, torch, torch.distributed as dist; rank = dist.get_rank; "


def define(source: str, **variables: Any) -> Callable[..., Any]:
    """The last function that `source` defines, as if it stood in a notebook cell; its first line is cell line 1."""
    filename = f"/tmp/ipykernel_1/{next(_numbers)}.py"
    source = dedent(source).lstrip("\n")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(_IMPORTS, namespace)
    namespace.update(variables)
    before = set(namespace)
    exec(compile(source, filename, "exec"), namespace)
    return [value for name, value in namespace.items() if name not in before and callable(value)][-1]


@pytest.fixture
def cell() -> Callable[..., Callable[..., Any]]:
    """`define`, as a fixture."""
    return define
