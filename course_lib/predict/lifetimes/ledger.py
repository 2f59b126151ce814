"""The ledger in which a predicted step writes down its births and deaths (`step.py` does the writing)."""

from __future__ import annotations

from collections import defaultdict

from course_kit.accounts import CATEGORIES

FLOAT, INT64, BOOL = 4, 8, 1
"""Bytes of one element."""


class Ledger:
    """The blocks of memory that are alive, by name, and the largest account so far.

    A name may be used again (every layer has its `mean`): the last one born is the first one freed, as a backward pass
    goes through the layers. `alive` and `peak` are category → bytes, now and at the moment when the most were alive;
    `phase` and `peak_phase` are the passes that run then.
    """

    def __init__(self, **held: int) -> None:
        self.alive = {category: int(held.get(category, 0)) for category in CATEGORIES}
        self.peak, self.peak_phase, self.phase = dict(self.alive), "", ""
        self._blocks: dict[str, list[tuple[str, int]]] = defaultdict(list)

    def add(self, category: str, **blocks: int) -> None:
        """Add blocks that are born at the same moment, name → bytes."""
        for name, nbytes in blocks.items():
            plain = int(nbytes)  # not Bytes: these sums are taken very often
            self._blocks[name].append((category, plain))
            self.alive[category] += plain
        if sum(self.alive.values()) > sum(self.peak.values()):
            self.peak, self.peak_phase = dict(self.alive), self.phase

    def make(self, **blocks: int) -> None:
        """Add results on their way to the next operation."""
        self.add("temporaries", **blocks)

    def save(self, **blocks: int) -> None:
        """Add results that autograd keeps for the backward pass."""
        self.add("activations", **blocks)

    def grad(self, **blocks: int) -> None:
        """Add gradients of parameters, which stay."""
        self.add("gradients", **blocks)

    def free(self, *names: str) -> None:
        """Free blocks whose last use is over."""
        for name in names:
            category, nbytes = self._blocks[name].pop()
            self.alive[category] -= nbytes

    def renew(self, **blocks: int) -> None:
        """Add results under names that are taken; the older blocks of these names go afterwards."""
        self.make(**blocks)
        for name in blocks:
            if len(self._blocks[name]) > 1:
                self.alive["temporaries"] -= self._blocks[name].pop(0)[1]

    def release(self, name: str) -> None:
        """Turn a saved block into a temporary: autograd drops it, but the caller, who passed the batch in, holds it."""
        category, nbytes = self._blocks[name].pop()
        self.alive[category] -= nbytes
        self.make(**{name: nbytes})
