"""The peak of a training step: the most bytes that are alive at one moment, followed tensor by tensor.

A plain step is `train.step.train_step`; one cut into micro-batches (`setup.micro_batch`) is
`train.accumulate.accumulated_step`: a batch of B rows in pieces of b leaves b/B of the activations. But from the second
piece on, the earlier pieces' gradients lie there while activations pile up, which in a plain step hardly meet:

    peak ≈ parameters + gradients + optimizer state + activations(b).

`largest` turns the question round: the largest model, batch or sequence that fits.

    predict.largest(setup, "layers", hardware.A100_80GB.memory)
    predict.largest(Setup(1, precision="mixed"), "config", Bytes(80 * 10**9), holds=predict.model_states)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.model.gpt import GPTConfig
from course_lib.predict.lifetimes.ledger import FLOAT, INT64, Ledger
from course_lib.predict.lifetimes.step import RecomputedLifetimes, StepLifetimes, optimizer_step
from course_lib.predict.memory import model_states
from course_lib.predict.setup import Setup, positive
from course_lib.predict.tensors import bytes_of, rank_tensors, tally

_OF_SETUP = ("config", "batch_size", "seq", "micro_batch")
_OF_CONFIG = ("layers", "width", "ffn_width", "vocab_size")
_STEPS = {"none": StepLifetimes, "full": RecomputedLifetimes}


@dataclass(frozen=True)
class PeakAccount(MemoryAccount):
    """The account at the peak of a step, and its phase: "forward", "backward" or "optimizer step"."""

    phase: str = ""


def peak(setup: Setup, first_step: bool = False) -> PeakAccount:
    """The most bytes that are alive at one moment of a training step, by category, and the phase of this moment.

    The last step's gradients go, then forward, backward, optimizer. The batch's tokens and targets (8 bytes each) are
    included. With "mixed", the optimizer is `train.precision.MasterWeights`', else one of `torch.optim`. With
    `recompute="full"`, every block's input alone is kept (`train.recompute.RecomputedLayers` with every=1); 5,056 bytes
    of random state for each block are left out. On a GPU (`device="cuda"`; one with units for bf16: on an older one,
    such as the T4, attention="fused" in bf16 falls back on products), its kernels' own buffers, and cuBLAS's
    workspaces, come on top. With micro-batches all sequences are equally long, and the whole batch is there throughout.

    Args:
        setup: the training setup, on one rank.
        first_step: in the first step of all, the optimizer's moments do not exist before the optimizer runs.

    Raises:
        ValueError: as `activations`; other layers than GPT-2's; gradients wider than the weights; more than one rank;
            micro-batches on a GPU or in the first step; tiles on a GPU.
    """
    config = setup.gpt
    if config.attention == "tiled" and setup.device != "cpu":
        raise ValueError('attention="tiled": its tiles are followed on a CPU alone; `activations` has what it keeps')
    if config.norm != "layernorm" or config.positions == "rotary" or config.dropout:
        raise ValueError(
            f"norm={config.norm!r}, positions={config.positions!r}, dropout={config.dropout}: a step is followed with "
            f"layernorm, learned positions and no dropout; `activations` has what others keep between the passes"
        )
    if setup.gradient_bytes != setup.weight_bytes:
        raise ValueError(
            f"gradients={setup.gradients!r} with precision={setup.precision!r}: a step is followed with gradients of "
            f"the weights' own width; model_states has the bytes of others"
        )
    if setup.recompute not in _STEPS or setup.recompute_every > 1:
        raise ValueError(
            f"recompute={setup.recompute!r}, recompute_every={setup.recompute_every}: a step is followed with "
            '"none", or with "full" of each block by itself; `activations` counts what all of them keep between passes'
        )
    if setup.micro_batch is not None and (first_step or setup.device != "cpu"):
        raise ValueError(
            f"micro_batch={setup.micro_batch}, first_step={first_step}, device={setup.device!r}: pieces are followed "
            f"on a CPU, in a step that is not the first"
        )
    setup.refuse_parallel("peak")
    states, elements = model_states(setup), [each.elements for each in rank_tensors(setup, 0, "parameters")]
    first = _one_piece(setup, states, elements, first_step)
    if setup.micro_batch is None:
        return first
    pieces, left = [_with_the_rest(setup, first)], setup.rank_rows - setup.rows_per_pass
    if left:
        second = setup.with_(micro_batch=min(setup.rows_per_pass, left))  # the others are no larger
        pieces.append(_with_the_rest(second, _one_piece(second, states, elements, adding=True)))
    return max(pieces, key=lambda account: account.total)


def _one_piece(
    setup: Setup, states: MemoryAccount, elements: list[int], first_step: bool = False, adding: bool = False
) -> PeakAccount:
    """The peak of a step of one piece of `rows_per_pass` sequences; or, `adding`, of a later one, before the update."""
    late = 0  # bytes of state that the optimizer's first step makes
    if first_step:
        late = bytes_of(pair for pair in tally(setup, 0, "optimizer") if not pair[0].name.endswith(".master"))
    before = {"parameters": states.parameters, "optimizer": states.optimizer - late}
    ledger = AddingLedger(**before, gradients=states.gradients) if adding else Ledger(**before)
    step = _STEPS[setup.recompute](setup, ledger)
    step.forward()
    step.backward()
    if setup.optimizer is not None and not adding:
        optimizer_step(setup, ledger, elements, late)
    return PeakAccount(**{name: Bytes(nbytes) for name, nbytes in ledger.peak.items()}, phase=ledger.peak_phase)


class AddingLedger(Ledger):
    """The ledger of every piece but the first: a new gradient lives until it is added to the old one.

    One backward operation may make several (of a matrix and of its bias); they go together, when it ends.
    """

    def __init__(self, **held: int) -> None:
        super().__init__(**held)
        self._added: list[str] = []

    def grad(self, **blocks: int) -> None:
        """Make gradients of parameters, on their way to `.grad`."""
        self.make(**blocks)
        self._added += blocks

    def free(self, *names: str) -> None:
        """End an operation: the blocks that it read go, and so do the gradients that it added."""
        added, self._added = self._added, []
        super().free(*names, *added)


def _with_the_rest(setup: Setup, account: PeakAccount) -> PeakAccount:
    """The account with the other pieces' targets, and the sum of the losses; the optimizer finds no loss beside it."""
    others = INT64 * (setup.rank_rows - setup.rows_per_pass) * setup.seq + FLOAT * (account.phase != "optimizer step")
    return replace(account, temporaries=account.temporaries + others)


@dataclass(frozen=True)
class Largest:
    """The largest value that fits."""

    value: int
    setup: Setup  # with this value in it
    account: MemoryAccount  # of this setup
    bounded_by: str  # why not the next one, in words with the numbers


def largest(
    setup: Setup, name: str, memory: int, holds: Callable[[Setup], MemoryAccount] = peak, limit: int = 2**48
) -> Largest:
    """The largest value of `setup.name` with which `holds(setup).total` is at most `memory`.

    A batch grows in steps of the ranks that share it, a sequence likewise, and a width in steps of the heads.

    Args:
        setup: everything else; what it has for `name` does not matter.
        name: a number of the setup ("batch_size", "seq", "micro_batch", "config" for a number of parameters), or of its
            `GPTConfig` ("layers", "width", "ffn_width", "vocab_size").
        memory: bytes that there are.
        holds: the account that must fit: `peak`, `model_states`, or a function of yours that does not fall with `name`.
        limit: the largest value to try.

    Raises:
        ValueError: `name` is no such number, there is no memory, or not even the smallest value fits or is possible.
    """
    positive(memory=memory)
    step = _step(setup, name)

    def of(times: int) -> Setup:
        return _with(setup, name, times * step)

    def refusal(times: int) -> str:
        """Why this many steps are too many; empty if they fit."""
        if name == "micro_batch" and times > setup.rank_rows:
            return f"micro_batch={times} is more than the {setup.rank_rows} sequences that fall on the rank"
        if times * step > limit:
            return f"{name}={times * step} is above the limit of {limit}"
        try:
            needed = holds(of(times)).total
        except ValueError as mistake:  # a setup that cannot be, such as a sequence beyond the context
            return str(mistake)
        more = Bytes(needed - memory)
        return "" if more <= 0 else f"{name}={times * step} needs {more} more than the {Bytes(memory)} that there are"

    holds(of(1))  # an error of the smallest value is an error of the question
    tries = range(setup.rank_rows if name == "micro_batch" else 1, 0, -1)  # with a smaller last piece, more may fit
    fails = 1 + (fits := next((times for times in tries if not refusal(times)), 0))
    if not fits:
        raise ValueError(f"nothing fits: {refusal(1)}")
    while not refusal(fails):  # double, until it does not fit; then halve the gap
        fits, fails = fails, 2 * fails
    fails = bisect_left(range(fails), True, lo=fits, key=lambda times: refusal(times) != "")
    found = of(fails - 1)
    return Largest((fails - 1) * step, found, holds(found), refusal(fails))


def _step(setup: Setup, name: str) -> int:
    """The number of which the value must be a multiple."""
    if name == "width":
        pairs = 2 if setup.gpt.positions == "rotary" else 1  # a head's features are turned in pairs
        return setup.gpt.heads * pairs
    return {"batch_size": setup.data * setup.expert, "seq": setup.context * setup.stream_parts}.get(name, 1)


def _with(setup: Setup, name: str, value: int) -> Setup:
    """The setup with another number in it, or in its config."""
    if name in _OF_SETUP:
        return setup.with_(**{name: value})
    if name in _OF_CONFIG and isinstance(setup.config, GPTConfig):
        return setup.with_(config=replace(setup.config, **{name: value}))
    raise ValueError(f"{name!r} is no number to search for: choose one of {', '.join([*_OF_SETUP, *_OF_CONFIG])}")
