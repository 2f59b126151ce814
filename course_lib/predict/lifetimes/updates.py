"""Births and deaths in an optimizer's step: blocks that exist for one parameter at a time, a small batch's peak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course_lib.predict.lifetimes.ledger import FLOAT, Ledger


def optimizer_step(
    ledger: Ledger,
    parameters: Sequence[int],
    optimizer: str,
    new_state: int,
    element: int = FLOAT,
    master: bool = False,
) -> None:
    """Adam divides by the root of its variance, one parameter after the other; SGD works in place.

    Args:
        ledger: where births and deaths go.
        parameters: elements of every parameter tensor, in the model's own order.
        optimizer: "adam", "momentum" or "sgd".
        new_state: bytes of state that this step creates.
        element: bytes of a weight.
        master: whether the step is `precision.MasterWeights`' own, which widens each gradient to fp32 first; else it
            is that of `torch.optim`.
    """
    ledger.phase = "optimizer step"
    if master:
        per_element = new_state // sum(parameters)
        for elements in parameters:  # moments are born one parameter at a time, too
            ledger.make(wide_gradient=FLOAT * elements)
            ledger.add("optimizer", state=per_element * elements)
            if optimizer == "adam":
                ledger.make(root=FLOAT * elements)
                ledger.make(divisor=FLOAT * elements)
                ledger.free("root", "divisor")
            ledger.free("wide_gradient")
        return
    ledger.add("optimizer", state=new_state)
    if optimizer == "adam":
        for previous, elements in pairwise([0, *parameters]):
            # The last divisor lives until the next one takes its name.
            ledger.make(last_divisor=element * previous, root=element * elements)
            ledger.make(divisor=element * elements)
            ledger.free("last_divisor", "root", "divisor")
