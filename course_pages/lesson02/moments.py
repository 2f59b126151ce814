"""The moments of a training step that may be its peak, as sums of terms that a script can add up.

`predict.peak` follows a step tensor by tensor, which no script can do at each move of a slider. But the bytes alive at
one moment, say when the last block's scores are masked, are a sum: so many for each layer, token and width, so
many for each head and pair of tokens, and so on. Here the library's own ledger tells the moments of a few small steps,
the factors of the terms are solved for, and moments that can never be the largest are left out. The peak of any step is
then the largest of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from course_lib.predict.lifetimes.ledger import FLOAT, INT64, Ledger
from course_lib.predict.lifetimes.step import RecomputedLifetimes, StepLifetimes, optimizer_step
from course_lib.predict.memory import model_states
from course_lib.predict.setup import Setup
from course_lib.predict.tensors import rank_tensors

TERMS = [
    (0, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (0, 0, 1, 0, 0), (0, 0, 1, 1, 0), (0, 0, 2, 0, 0),
    (0, 1, 0, 0, 0), (0, 1, 0, 1, 0), (0, 1, 0, 0, 1), (0, 1, 1, 0, 1),
    (1, 1, 0, 0, 0), (1, 1, 0, 1, 0), (1, 1, 0, 0, 1), (1, 1, 1, 0, 1),
    (1, 0, 0, 0, 0), (1, 0, 0, 1, 0), (1, 0, 0, 2, 0), (1, 0, 2, 0, 0),
]  # fmt: skip
"""Powers of layers, tokens of the batch, tokens of a sequence, width, heads. The vocabulary is inside the factors."""

PARTS = ("gradients", "activations", "temporaries")
"""Categories that come and go within a step. Weights and optimizer state stay."""

Moments = dict[str, list[int]]
"""Place in the step → bytes of each part that are alive."""


def terms(layers: int, batch: int, seq: int, width: int, heads: int) -> list[int]:
    """The terms of one step."""
    numbers = (layers, batch * seq, seq, width, heads)
    return [prod(number**power for number, power in zip(numbers, powers, strict=True)) for powers in TERMS]


class Watch(Ledger):
    """A ledger that keeps every moment, under the pass and the place that run then.

    `place` is "start", "first block", "between", "last block", or "end" when a pass has its blocks behind it.
    """

    def __init__(self, **held: int) -> None:
        super().__init__(**held)
        self.place, self.seen = "start", dict[tuple[str, str], list[list[int]]]()

    def add(self, category: str, **blocks: int) -> None:
        """Add blocks, and keep the moment."""
        super().add(category, **blocks)
        self.seen.setdefault((self.phase, self.place), []).append([self.alive[part] for part in PARTS])


def _telling(run: Callable[[], None], ledger: Watch, layers: int) -> Callable[[], None]:
    """The pass of a block, which tells the ledger its place before it runs; behind the last block comes the end."""
    places = iter(["first block", *["between"] * (layers - 2), "last block"])

    def visit() -> None:
        ledger.place = next(places)
        run()
        if ledger.place == "last block":
            ledger.place = "end"

    return visit


def passes(setup: Setup) -> Moments:
    """The moments of forward and backward: outside of the blocks, and in the first and last one.

    From one block to the next, the bytes alive grow or shrink by the same number: blocks in the middle lie between.
    """
    ledger, layers = Watch(), setup.gpt.layers
    step = (RecomputedLifetimes if setup.recompute == "full" else StepLifetimes)(setup, ledger)
    step.block = _telling(step.block, ledger, layers)  # type: ignore[method-assign]
    step.block_backward = _telling(step.block_backward, ledger, layers)  # type: ignore[method-assign]
    step.forward()
    ledger.place = "start"
    step.backward()
    return {
        f"{phase}, {place}, {n}": account
        for (phase, place), accounts in ledger.seen.items()
        if place != "between"
        for n, account in enumerate(accounts)
    }


def update(setup: Setup) -> Moments:
    """The moments of the optimizer's step.

    All blocks have the same parameters: the updates of the first one stand for all.
    """
    tensors = rank_tensors(setup, 0, "parameters")
    elements = [each.elements for each in tensors if each.name.split(".")[:2][-1] in ("0", "weight", "bias")]
    batch = 2 * INT64 * setup.batch_size * setup.seq + FLOAT  # tokens, targets and the loss, which the caller holds
    ledger = Watch(gradients=model_states(setup).gradients, temporaries=batch)
    optimizer_step(setup, ledger, elements)
    seen = ledger.seen.get(("optimizer step", "start"), [])  # no moment, where every operation is in place
    return {f"optimizer step, {n}": account for n, account in enumerate(seen)}


def states(setup: Setup) -> Moments:
    """Bytes that stay through the step: weights and optimizer state."""
    held = model_states(setup)
    return {"states": [held.parameters, held.optimizer]}


def sums(follow: Callable[[Setup], Moments], steps: Sequence[Setup]) -> dict[str, list[list[int]]]:
    """For every moment of these steps, which differ in their sizes alone: for each part the factor of each term, exact.

    Raises:
        ArithmeticError: the bytes alive at some moment are no such sum.
    """
    sizes = [(each.gpt.layers, each.batch_size, each.seq, each.gpt.width, each.gpt.heads) for each in steps]
    rows, seen = np.array([terms(*each) for each in sizes], dtype=float), [follow(step) for step in steps]
    known = np.array([list(each.values()) for each in seen], dtype=float)  # steps, moments, parts
    # With a single sequence, tokens of the batch and of the sequence are one number: the first of equal terms counts.
    _, first = np.unique(rows, axis=1, return_index=True)
    scale = rows[:, first].max(axis=0)
    solved = np.linalg.lstsq(rows[:, first] / scale, known.reshape(len(steps), -1), rcond=None)[0]
    factors = np.zeros((len(TERMS), *known.shape[1:]))
    factors[first] = (solved / scale[:, None]).round().reshape(len(first), *known.shape[1:])
    if not np.array_equal(np.tensordot(rows, factors, axes=1), known):
        raise ArithmeticError("what is alive is no sum of these terms")
    return {name: factors[:, at].T.astype(int).tolist() for at, name in enumerate(seen[0])}


def that_may_be_largest(found: dict[str, list[list[int]]]) -> list[tuple[str, list[list[int]]]]:
    """The pass and the sums of the moments, but for those that another one exceeds, or equals, in every factor.

    Terms are positive: what has no larger factor is no larger, whatever the sizes.
    """
    totals, kept = {name: np.sum(parts, axis=0) for name, parts in found.items()}, set[str]()
    for name in sorted(totals, key=lambda name: -totals[name].sum()):  # what may exceed a moment comes before it
        if not any((totals[name] <= totals[other]).all() for other in kept):
            kept.add(name)
    return [(name.split(",")[0], parts) for name, parts in found.items() if name in kept]
