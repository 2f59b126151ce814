"""The tests' own run-time checks: shapes in signatures are executed, and ranks get functions that work."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from course_kit import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_tools import TAUGHT

ROOT = Path(__file__).parents[1]
READS = ("course_*/**/*.py",)
A_SHAPE = re.compile(r"\b(Float|Int|Bool|Num|Shaped|Real|Complex|UInt|Inexact|Integer)\d*\[")
TINY = GPTConfig(layers=1, width=8, heads=2, vocab_size=16, context=8)


def test_a_wrong_shape_in_a_call_is_found() -> None:
    with pytest.raises(TypeCheckError):
        GPT(TINY)(torch.zeros(3, dtype=torch.int64))  # tokens have a batch dimension


def test_a_wrong_shape_is_the_librarys_own_business_where_a_test_says_so(unchecked_shapes: None) -> None:
    with pytest.raises(Exception) as caught:
        GPT(TINY)(torch.zeros(3, dtype=torch.int64))
    assert not isinstance(caught.value, TypeCheckError)


def test_a_checked_function_can_be_shipped_to_ranks() -> None:
    model = GPT(TINY)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    outputs = ranks.run(model.forward, tokens, world_size=2)
    expected = model(tokens)
    assert all(torch.equal(_first(output), _first(expected)) for output in outputs)


def test_ranks_of_tests_are_forked_with_what_they_import() -> None:
    assert ranks.run(_has_the_grid, world_size=2) == [True, True]


def _has_the_grid() -> bool:
    return "course_lib.parallel.hybrid" in sys.modules


def _first(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def test_every_signature_that_speaks_of_shapes_is_checked() -> None:
    """Signatures are read from the sources, so that a hint which the checker fails to understand shows up here."""
    missed = []
    for path in sorted(path for package in TAUGHT for path in (ROOT / package).rglob("*.py")):
        module = importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        for name, function in functions(module, ast.parse(path.read_text("utf-8")).body):
            if not hasattr(function, "__wrapped__"):
                missed.append(f"{module.__name__}.{name}")
    assert not missed


def functions(place: object, body: list[ast.stmt], above: str = "") -> Iterator[tuple[str, object]]:
    """The functions and methods with a shape in their signature, by name."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(getattr(place, node.name), node.body, f"{node.name}.")
        if isinstance(node, ast.FunctionDef):
            hints = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs)]
            if any(hint is not None and A_SHAPE.search(ast.unparse(hint)) for hint in (*hints, node.returns)):
                found = inspect.getattr_static(place, node.name)
                inside = [getattr(found, name, None) for name in ("fget", "func", "__func__")]  # of a property, say
                yield above + node.name, next(filter(None, inside), found)
