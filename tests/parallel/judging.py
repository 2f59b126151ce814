"""Checks on ranks: they raise on all ranks or on none, so that one call on the ranks can make many mistakes."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import ranks


def off(what: str, ours: Tensor | None, theirs: Tensor | None, limit: float | None = None) -> list[str]:
    """What is wrong, if it is. NaN is always."""
    if ours is None or theirs is None:
        return [] if ours is theirs else [f"the {what} is {ours}, where {theirs} is due"]
    if ours.shape != theirs.shape:
        return [f"the {what} has the shape {tuple(ours.shape)}, where {tuple(theirs.shape)} is due"]
    if ours.numel() == 0:
        return []
    limit = 1e4 * torch.finfo(theirs.dtype).eps if limit is None else limit
    distance = float((ours.detach() - theirs.detach()).abs().max())
    return [] if distance <= limit else [f"the {what} is off by {distance:.1e}"]


def agree(problems: list[str] | bool, where: str) -> None:
    """An assertion about this rank alone, as a list of problems, or as a fact and what is said if it is not so: it
    raises on all ranks, or on none."""
    if isinstance(problems, list):
        some = problems if len(problems) < 6 else [*problems[:3], f"{len(problems) - 5} more", *problems[-2:]]
        said = where + "; ".join(some) if problems else ""
    else:
        said = "" if problems else where
    everyone: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everyone, said)
    for rank, each in enumerate(everyone):
        assert not each, f"rank {rank}: {each}"


def own(part: tuple[Tensor, Tensor]) -> list[Tensor]:
    """This rank's share."""
    return [tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in part]


def refusals(cases: list[tuple[Any, ...]]) -> list[str]:
    """What each check says against what it is given; "" if it finds nothing. All ranks must call.

    A case is a check, its arguments, and a dict of settings.
    """
    said = []
    for check, *args, settings in cases:
        try:
            check(*args, **settings)
            said.append("")
        except AssertionError as refusal:
            said.append(str(refusal))
    return said


def accepted(world_size: int, cases: dict[Any, tuple[Any, ...]]) -> dict[str, str]:
    """Known-wrong → what was said against it instead of what is due: of all that are not refused as they should be.

    Args:
        world_size: all are judged in one call on so many ranks.
        cases: known-wrong → (a pattern of what is due, the check, its arguments, a dict of settings).
    """
    calls = [tuple(call) for _, *call in cases.values()]
    said = ranks.run(refusals, calls, world_size=world_size, timeout_s=120, diagnose=False)[0]
    pairs = zip(cases, [due for due, *_ in cases.values()], said, strict=True)
    return {str(wrong): text or "nothing" for wrong, due, text in pairs if not re.search(due, text)}


def told(*calls: Callable[[], object]) -> list[str]:
    """What each call is refused with; "" if it is not."""
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except ValueError as problem:
            said.append(str(problem))
    return said


def refused(world_size: int, mistakes: Sequence[tuple[Callable[[], object], str]]) -> list[tuple[str, str]]:
    """(pattern, what was said) of those mistakes that some rank is not told of as they should be.

    Args:
        world_size: all are made in one call on so many ranks.
        mistakes: a call that raises ValueError, and a pattern of its words.
    """
    calls = [call for call, _ in mistakes]
    everyone = ranks.run(told, *calls, world_size=world_size, timeout_s=120, diagnose=False)
    pairs = [(due, text) for said in everyone for (_, due), text in zip(mistakes, said, strict=True)]
    return [(due, text) for due, text in pairs if not re.search(due, text)]


def on_ranks(
    *sizes: int, nightly: tuple[int, ...] = (), backend: str | None = None, **how: Any
) -> Callable[[Callable[..., None]], Any]:
    """Make a check a test that runs on so many ranks, one size after the other, with the test's own arguments.

    With a `backend` the ranks are new ones. "cpu:gloo" is, to CPU tensors, what each rank with its own GPU has:
    "cpu:gloo,cuda:nccl", a backend for each kind of device.
    """
    marked = [*sizes, *(pytest.param(size, marks=pytest.mark.nightly) for size in nightly)]

    def decorated(check: Callable[..., None]) -> Any:
        @functools.wraps(check)
        def test(world_size: int, **arguments: Any) -> None:
            if backend is None:
                ranks.run(check, **arguments, world_size=world_size, **how)
                return
            with ranks.Ranks(world_size, backend, **how) as pool:
                pool.run(check, **arguments)

        own = list(inspect.signature(check).parameters.values())
        size = inspect.Parameter("world_size", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([size, *own])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("world_size", marked)(test)

    return decorated
