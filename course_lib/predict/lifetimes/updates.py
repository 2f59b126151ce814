"""Births and deaths in an optimizer's step: blocks that exist for one parameter at a time, a small batch's peak."""

from __future__ import annotations

from itertools import pairwise

from course_lib.model.gpt import GPTConfig
from course_lib.predict.lifetimes.ledger import FLOAT, Ledger


def optimizer_step(
    ledger: Ledger, config: GPTConfig, optimizer: str, new_state: int, element: int = FLOAT, master: bool = False
) -> None:
    """Adam divides by the root of its variance, one parameter after the other; SGD works in place.

    Args:
        ledger: where births and deaths go.
        config: whose parameters are updated.
        optimizer: "adam", "momentum" or "sgd".
        new_state: bytes of state that this step creates.
        element: bytes of a weight.
        master: whether the step is `precision.MasterWeights`' own, which widens each gradient to fp32 first; else it
            is that of `torch.optim`.
    """
    ledger.phase = "optimizer step"
    if master:
        per_element = new_state // sum(parameter_elements(config))
        for elements in parameter_elements(config):  # moments are born one parameter at a time, too
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
        for previous, elements in pairwise([0, *parameter_elements(config)]):
            # The last divisor lives until the next one takes its name.
            ledger.make(last_divisor=element * previous, root=element * elements)
            ledger.make(divisor=element * elements)
            ledger.free("last_divisor", "root", "divisor")


def parameter_elements(config: GPTConfig) -> list[int]:
    """Number of elements of every parameter tensor, in the model's own order."""
    width, hidden = config.width, config.mlp_width
    norm = [width, width] if config.norm == "layernorm" and config.bias else [width]

    def linear(inputs: int, outputs: int) -> list[int]:
        return [inputs * outputs, outputs] if config.bias else [inputs * outputs]

    attention = [*linear(width, 3 * width), *linear(width, width)]
    block = [*norm, *attention, *norm, *linear(width, hidden), *linear(hidden, width)]
    positions = [config.context * width] if config.positions == "learned" else []
    head = [] if config.tied else [config.vocab_size * width]
    return [config.vocab_size * width, *positions, *(block * config.layers), *norm, *head]
