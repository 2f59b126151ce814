"""The peak of an accumulated step: the activations of one piece, and gradients that are alive all the time.

Cutting a batch of B rows into pieces of b leaves b/B of the activations. It costs something too. In a plain step the
gradients grow while the activations shrink, so they hardly meet. From the second piece on, the sum of the earlier
pieces' gradients lies there while the activations of the next one pile up:

    peak ≈ parameters + gradients + optimizer state + activations(b).

`accumulated_peak` follows the tensors one by one, as `predict.peak` does, and is exact.

Lesson 05 opens this module.
"""

from __future__ import annotations

from typing import Literal

from course_lib.model.gpt import GPTConfig
from course_lib.predict.lifetimes.ledger import FLOAT, INT64, Ledger
from course_lib.predict.memory import Optimizer, PeakAccount, Precision, model_states, peak, step_lifetimes
from course_lib.units import Bytes


def accumulated_peak(
    config: GPTConfig, global_batch: int, micro_batch: int, seq: int, optimizer: Optimizer | None = "adam",
    precision: Precision = "fp32", recompute: Literal["none", "full"] = "none",
) -> PeakAccount:  # fmt: skip
    """The most bytes that are alive at one moment of `train.accumulate.accumulated_step`, and the phase it happens in.

    As `predict.peak`: on a CPU, in a step that is not the first. All sequences are equally long, so no column is
    trimmed, and the whole batch's tokens and targets (16 bytes a token) are there from the beginning.

    Args:
        config: the shape.
        global_batch: sequences in the step.
        micro_batch: sequences in a piece; the last piece may be smaller. From `global_batch` on there is one piece.
        seq: tokens in a sequence.
        optimizer, precision, recompute: as in `predict.peak`.

    Raises:
        ValueError: as `predict.peak`; a batch or a piece without a sequence.
    """
    if global_batch < 1 or micro_batch < 1:
        raise ValueError(f"global_batch={global_batch}, micro_batch={micro_batch}: both must be at least 1")
    rows = min(micro_batch, global_batch)
    accounts = [peak(config, rows, seq, optimizer, precision=precision, recompute=recompute)]
    if global_batch > rows:
        states = model_states(config, precision, optimizer or "sgd")
        ledger = AddingLedger(parameters=states.parameters, gradients=states.gradients, optimizer=states.optimizer)
        step = step_lifetimes(config, rows, seq, ledger, precision, recompute)
        step.forward()
        step.backward()
        later = {name: Bytes(nbytes) for name, nbytes in ledger.peak.items()}
        accounts.append(PeakAccount(**later, phase=ledger.peak_phase))
    waiting = INT64 * (global_batch - rows) * seq
    return max((_with_the_rest(account, waiting) for account in accounts), key=lambda account: account.total)


class AddingLedger(Ledger):
    """The ledger of every piece but the first: a new gradient lives until it is added to the old one.

    One backward operation may make several (of a matrix and of its bias); they go together, when it ends.
    """

    def __init__(self, **held: int) -> None:
        super().__init__(**held)
        self._added: list[str] = []

    def grad(self, **blocks: int) -> None:
        """Gradients of parameters, on their way to `.grad`."""
        self.make(**blocks)
        self._added += blocks

    def free(self, *names: str) -> None:
        """The operation ends: what it read can go, and what it added as well."""
        added, self._added = self._added, []
        super().free(*names, *added)


def _with_the_rest(account: PeakAccount, waiting: int) -> PeakAccount:
    """The account with the tokens and targets of the other pieces, `waiting` bytes each, and the sum of the losses.

    A piece is a view of the batch, so what autograd keeps of its tokens is the whole block.
    """
    kept = 0 if account.phase == "optimizer step" else waiting
    changed = {
        "activations": account.activations + kept,
        "temporaries": account.temporaries + 2 * waiting - kept + FLOAT,
    }
    return PeakAccount(**{**account, **changed}, phase=account.phase)
