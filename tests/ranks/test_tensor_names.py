"""Looking for a tensor's name leaves nothing behind: what the reader's variables let go of is gone."""

from __future__ import annotations

import time
import weakref

import torch
import torch.distributed as dist

from course_kit import ranks


def let_go_of_two() -> tuple[bool, bool]:
    """Whether a tensor that was reduced here, and one that was reduced by a function, live on without a name."""
    whole = torch.ones(3)
    dist.all_reduce(whole)
    here = weakref.ref(whole)
    whole = None
    lives_here = lives_on(here)
    whole = torch.ones(3)
    reduced(whole)
    there = weakref.ref(whole)
    whole = None
    return lives_here, lives_on(there)


def lives_on(tensor: weakref.ref[torch.Tensor]) -> bool:
    """Whether it is still there when gloo's threads, too, have had time to let go."""
    until = time.monotonic() + 2
    while tensor() is not None and time.monotonic() < until:
        time.sleep(0.01)
    return tensor() is not None


def reduced(whole: torch.Tensor) -> None:
    """Its caller's variables are looked at as well."""
    dist.all_reduce(whole)


def locals_of_the_reader() -> list[str]:
    mine = locals()
    whole = torch.ones(3)
    dist.all_reduce(whole)
    return sorted(mine)


def test_no_tensor_lives_on_because_its_name_was_looked_up() -> None:
    assert ranks.run(let_go_of_two, world_size=2) == [(False, False)] * 2


def test_what_the_reader_asked_for_stays_his() -> None:
    assert all("whole" in names for names in ranks.run(locals_of_the_reader, world_size=2))
