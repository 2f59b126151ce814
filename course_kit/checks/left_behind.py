"""What a call leaves behind: whether the things that it was given, and the random state, are as they were before.

An answer whose values are right may still have emptied the caller's list, switched gradients on in the caller's tensor
or left the model in eval mode. A `Snapshot` of what a call is given, taken before it, says afterwards what has changed.

It copies nothing: containers are remembered by their entries, tensors by a checksum of their bytes. It runs no tensor
operation either, so it works inside every meter, and costs microseconds where tensors are small.
"""

from __future__ import annotations

import inspect
import random
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from course_kit.checks.facts import Fact, facts, surroundings, told
from course_kit.checks.failed import fail

ASPECTS = ("entries", "values", "requires_grad", "grad", "mode", "hooks", "random", "settings")
"""What of a thing can change; the last one is how PyTorch is set: whether gradients are on, and the default dtype."""

MayChange = str | Collection[Any]
"""What a call may change: one of the `ASPECTS`, or several of them and things that it is given."""

_SEED = 0x5EED_0DD
_DICE = struct.Struct("625I")
"""Of a Mersenne twister: 624 words, and which of them is next."""


class Snapshot:
    """What a call is given, as it was before the call.

    Args:
        things: name → argument.
        may_change: what the contract allows to change: an aspect ("grad": wherever it is), or a thing with all that it
            consists of (`[optimizer, "random"]`).
    """

    def __init__(self, things: Mapping[str, Any], may_change: MayChange = ()) -> None:
        self._aspects, self._things = _aspects(may_change), things
        self._free = {id(each): each for each in may_change if not isinstance(each, str)}
        self._before = self._facts()

    def changes(self) -> list[str]:
        """What has changed since, in words, the outermost first: ["`plan` had 5 entries, now 3"]."""
        after, found = self._facts(), []
        for key, was in self._before.items():
            now = after.get(key)
            if now is not None and now.value != was.value:  # what is gone is gone with the entry that held it
                found.append(told(was, now))
        return found

    def compare(self, what: str, look: str = "") -> None:
        """Raise a `CheckFailed` if something has changed."""
        if changes := self.changes():
            more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
            fail(what, expected="all of it as it was before", came="; ".join(changes[:3]) + more, look=look)

    def _facts(self) -> dict[tuple[str, str], Fact]:
        seen = dict(self._free)
        given = (fact for name, thing in self._things.items() for fact in facts(name, thing, seen))
        found = (*surroundings(), *given)
        return {(fact.path, fact.aspect): fact for fact in found if fact.aspect not in self._aspects}


def _aspects(may_change: MayChange) -> set[str]:
    """The aspects among what may change."""
    named = {may_change} if isinstance(may_change, str) else {each for each in may_change if isinstance(each, str)}
    if unknown := named - set(ASPECTS):
        raise ValueError(f"may_change={may_change!r}: {unknown} is none of {', '.join(ASPECTS)}, nor a thing given")
    return named


@contextmanager
def unchanged(what: str, things: Mapping[str, Any], may_change: MayChange = (), look: str = "") -> Iterator[None]:
    """A `CheckFailed` if the block leaves anything of `things` changed but `may_change`.

    with check.unchanged("after add", {"model": model}, may_change="grad"):
        check.call(total.add, inputs, targets)  # the object has the model, the call has not
    """
    with nullcontext() if "random" in _aspects(may_change) else _other_dice():
        given = Snapshot(things, may_change)
        yield
        given.compare(what, look)


@contextmanager
def _other_dice() -> Iterator[None]:
    """Other random states while the block runs: to set the same seed once more would change nothing otherwise."""
    dice, (version, numbers, gauss) = torch.default_generator.get_state(), random.getstate()
    packed = _DICE.pack(*numbers)  # 2.5 KB: what holds 4 KiB or more counts where memory is measured
    del numbers
    torch.default_generator.manual_seed(_SEED)
    random.seed(_SEED)
    try:
        yield
    finally:
        torch.default_generator.set_state(dice)
        random.setstate((version, _DICE.unpack(packed), gauss))


def named(fn: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a call by the names that the function has for them; those of `*args` with their number."""
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # it does not fit, or nobody knows: the call itself will say so
        return {**{f"argument {number}": arg for number, arg in enumerate(args, 1)}, **kwargs}
    return dict(bound)
