"""The peak of a training step: the most bytes that are alive at one moment, followed tensor by tensor.

A plain step is `train.step.train_step`. Cut into micro-batches (`setup.micro_batch`) it is
`train.accumulate.accumulated_step`: a batch of B rows in pieces of b leaves b/B of the activations, and costs something
too. In a plain step the gradients grow while the activations shrink, so they hardly meet. From the second piece on, the
sum of the earlier pieces' gradients lies there while the activations of the next one pile up:

    peak ≈ parameters + gradients + optimizer state + activations(b).
"""

from __future__ import annotations

from dataclasses import dataclass

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.predict.lifetimes.ledger import FLOAT, INT64, Ledger
from course_lib.predict.lifetimes.updates import optimizer_step
from course_lib.predict.memory import model_states, step_lifetimes
from course_lib.predict.params import parameters
from course_lib.predict.setup import Setup


@dataclass(frozen=True)
class PeakAccount(MemoryAccount):
    """The account at the peak of a step, and the phase in which it occurs.

    Attributes:
        phase: "forward", "backward" or "optimizer step".
    """

    phase: str = ""


def peak(setup: Setup, first_step: bool = False) -> PeakAccount:
    """The most bytes that are alive at one moment of a training step, by category, and the phase it happens in.

    The last step's gradients go, then forward, backward, optimizer. The batch's tokens and targets (8 bytes each) are
    included. With "mixed", the optimizer is `train.precision.MasterWeights`', else one of `torch.optim`. With
    `recompute="full"`, every block's input alone is kept (`train.recompute.RecomputedLayers` with every=1), which
    leaves out 5,056 bytes of random state for each block. On a GPU (`device="cuda"`; one with units for bf16: on an
    older one, such as the T4, attention="fused" in bf16 falls back on products), what its kernels use inside, and
    cuBLAS's workspaces, come on top. With micro-batches all sequences are equally long, so no column is trimmed, and
    the whole batch is there from the beginning.

    Args:
        setup: what is trained, and how.
        first_step: in the first step of all, the optimizer's moments do not exist before the optimizer runs.

    Returns:
        The account; `.phase` says when, `.total` is the sum.

    Raises:
        ValueError: as `activations`; gradients wider than the weights; more than one rank; micro-batches on a GPU or in
            the first step.
    """
    setup.refuse_parallel("peak")
    if setup.gradient_bytes != setup.weight_bytes:
        raise ValueError(
            f"gradients={setup.gradients!r} with precision={setup.precision!r}: a step is followed with gradients of "
            f"the weights' own width; model_states has the bytes of others"
        )
    if setup.micro_batch is None:
        return _plain_peak(setup, first_step)
    if first_step or setup.device != "cpu":
        raise ValueError(
            f"micro_batch={setup.micro_batch}, first_step={first_step}, device={setup.device!r}: pieces are followed "
            f"on a CPU, in a step that is not the first"
        )
    return _accumulated_peak(setup)


def _plain_peak(setup: Setup, first_step: bool) -> PeakAccount:
    """Of a step that takes the batch as a whole."""
    states, mixed = model_states(setup), setup.precision == "mixed"
    master = Bytes(FLOAT * int(parameters(setup.gpt)) if mixed else 0)
    early, late = (master, states.optimizer - master) if first_step else (states.optimizer, 0)
    ledger = Ledger(parameters=states.parameters, optimizer=early)
    step = step_lifetimes(setup, ledger)
    step.forward()
    step.backward()
    if setup.optimizer is not None:
        optimizer_step(ledger, setup.gpt, setup.optimizer, late, step.element, mixed)
    return _account(ledger)


def _accumulated_peak(setup: Setup) -> PeakAccount:
    """Of a step in pieces: the higher one of a first piece and a later one."""
    accounts = [_plain_peak(setup.with_(batch_size=setup.rows, micro_batch=None), first_step=False)]
    if setup.micro_batches > 1:
        states = model_states(setup)
        ledger = AddingLedger(parameters=states.parameters, gradients=states.gradients, optimizer=states.optimizer)
        step = step_lifetimes(setup, ledger)
        step.forward()
        step.backward()
        accounts.append(_account(ledger))
    waiting = INT64 * (setup.batch_size - setup.rows) * setup.seq
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


def _account(ledger: Ledger) -> PeakAccount:
    return PeakAccount(**{name: Bytes(nbytes) for name, nbytes in ledger.peak.items()}, phase=ledger.peak_phase)


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
